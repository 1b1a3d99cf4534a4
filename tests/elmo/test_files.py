"""Nothing half-written, nothing lost."""

import errno
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.files import (
    check_sha256,
    digest,
    new_file,
    new_folder,
    read_json,
    sha256,
    write_json,
)


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_folder(out) as new:
        (new / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_folder(out) as new:
        (new / "a").write_text("new")
        raise KeyboardInterrupt
    assert (out / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    for name in ("first", "second"):
        with new_folder(out) as new:
            (new / name).touch()
    assert [path.name for path in out.iterdir()] == ["second"]


def test_a_failed_file_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "file"
    out.write_text("old")
    with pytest.raises(ElmoError, match="file: no space left"), new_file(out) as new:
        new.write_text("half")
        raise OSError("no space left")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_names_what_was_being_written(tmp_path: Path) -> None:
    for new in (new_file, new_folder):
        with pytest.raises(ElmoError, match="out: No space left on device"), new(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_an_altered_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"abc")
    expected = sha256(path)
    check_sha256(path, expected)
    path.write_bytes(b"abd")
    with pytest.raises(ElmoError, match=r"shard: truncated or altered"):
        check_sha256(path, expected)
    path.unlink()
    with pytest.raises(ElmoError, match=r"shard: is missing"):
        check_sha256(path, expected)


def test_json_is_the_same_bytes_for_the_same_value(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": "é"})
    write_json(tmp_path / "b", {"a": "é", "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": "é", "b": 1}
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a":\n 1,,}', r"x\.json:2: not valid JSON"),
        (b"[1]", r"x\.json: must hold a JSON object, found a list"),
        (b'{"a": "\xff"}', r"x\.json: not UTF-8 \(byte 7\)"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ElmoError, match=message):
        read_json(tmp_path / "x.json")
