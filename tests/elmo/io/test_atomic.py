"""Nothing half-written, nothing lost."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.io.atomic import new_file, new_file_if_absent, sweep, write_json
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.io.records import (
    check_sha256,
    digest,
    read_json,
    sha256,
)


def test_a_failed_folder_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with new_folder(Location(out)) as new:
        (new / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), new_folder(Location(out), required=["a"]) as new:
        (new / "a").write_text("new")
        raise KeyboardInterrupt
    assert (out / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    for name in ("first", "second"):
        with new_folder(Location(out), required=["mark"]) as new:
            (new / "mark").touch()
            (new / name).touch()
    assert sorted(path.name for path in out.iterdir()) == ["mark", "second"]


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    file = tmp_path / "notes.txt"
    file.write_text("theirs")
    link = tmp_path / "link"
    link.symlink_to(theirs)
    file_link = tmp_path / "file_link"
    file_link.symlink_to(file)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    for out, message in (
        (theirs, "theirs: .*found thesis.txt"),
        (file, "notes.txt: is a file, not a folder"),
        (link, "link: is a symbolic link to .*theirs; use that path, or delete the link"),
    ):
        with (
            pytest.raises(ElmoError, match=message),
            new_folder(Location(out), required=["config.json"]),
        ):
            raise AssertionError("no work starts")
    for out, message in (
        (theirs, "theirs: is a folder; choose a file"),
        (
            file,
            "notes.txt: already exists; delete it, choose another name or pass --overwrite",
        ),
        (file_link, "file_link: is a symbolic link to .*notes.txt"),
    ):
        with pytest.raises(ElmoError, match=message), new_file_if_absent(out):
            raise AssertionError("no work starts")
    with pytest.raises(ElmoError, match=r"notes\.txt: already exists"):
        write_json(file, {})
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert file.read_text() == "theirs" and file_link.is_symlink() and link.is_symlink()


def test_an_empty_file_is_replaced_and_one_that_came_meanwhile_is_not(tmp_path: Path) -> None:
    out = tmp_path / "vectors.npz"
    out.touch()
    with new_file_if_absent(out) as new:
        new.write_bytes(b"vectors")
    assert out.read_bytes() == b"vectors" and list(tmp_path.iterdir()) == [out]
    out.unlink()
    with pytest.raises(ElmoError, match="exists"), new_file_if_absent(out) as new:
        new.write_bytes(b"vectors")
        out.write_bytes(b"theirs")
    assert out.read_bytes() == b"theirs" and list(tmp_path.iterdir()) == [out]


KILLED = """
import os, signal, sys
from pathlib import Path
from elmo.io.atomic import new_file, new_file_if_absent
from elmo.io.folders import new_folder
from elmo.io.location import Location
out = Path(sys.argv[1])
with (
    new_folder(Location(out / "folder")) as folder,
    new_file_if_absent(out / "file") as file,
    new_file(out / "replaced") as replaced,
):
    (folder / "half").touch()
    file.write_bytes(b"PK half")
    replaced.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=root)
    assert len(list(tmp_path.iterdir())) == 3
    with new_folder(Location(tmp_path / "folder")) as first:
        (first / "a").touch()
        with pytest.raises(KeyboardInterrupt), new_folder(Location(tmp_path / "folder")):
            raise KeyboardInterrupt
        with new_file_if_absent(tmp_path / "file") as new:
            new.write_bytes(b"PK")
        with new_file(tmp_path / "replaced") as new:
            new.write_text("whole")
        assert (first / "a").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "replaced"]


def test_an_interrupt_while_a_hidden_folder_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("elmo.io.locks.fcntl.flock", interrupted)
    for new in (new_folder(Location(tmp_path / "out")), new_file_if_absent(tmp_path / "out")):
        with pytest.raises(KeyboardInterrupt), new:
            raise AssertionError("unreachable")
        assert list(tmp_path.iterdir()) == []


def test_a_hidden_folder_that_a_sweep_takes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def swept_first(path: Path, flags: int) -> int:
        monkeypatch.setattr("elmo.io.atomic.os.open", opened)
        with new_folder(Location(tmp_path / "out")):
            pass
        return opened(path, flags)

    monkeypatch.setattr("elmo.io.atomic.os.open", swept_first)
    with new_folder(Location(tmp_path / "out")) as new:
        (new / "whole").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["whole"]


def test_a_failed_file_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "file"
    out.write_text("old")
    with pytest.raises(ElmoError, match="file: no space left"), new_file(out) as new:
        new.write_text("half")
        raise OSError("no space left")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_names_what_was_being_written(tmp_path: Path) -> None:
    for new in (new_file(tmp_path / "out"), new_folder(Location(tmp_path / "out"))):
        with pytest.raises(ElmoError, match="out: No space left on device"), new:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".out.0123abcd").mkdir()
    (tmp_path / ".other.0123abcd").touch()
    kept = ["out", ".out", ".out.txt", ".out.0123abcde"]
    for name in kept:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    sweep(tmp_path / "absent")


def test_a_refused_output_has_nothing_beside_it_that_a_killed_writer_left(tmp_path: Path) -> None:
    code = "import os, sys, pathlib, shutil; from elmo.io import atomic\n"
    code += "shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), 9)\n"
    code += "out = pathlib.Path(sys.argv[1])\n"
    code += "with atomic.new_file_if_absent(out) as new: new.write_text('whole')\n"
    out = tmp_path / "vectors.npz"
    subprocess.run([sys.executable, "-c", code, str(out)], check=False)
    assert out.read_text() == "whole" and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ElmoError, match="already exists"), new_file_if_absent(out):
        raise AssertionError
    assert list(tmp_path.iterdir()) == [out]


def test_a_work_folder_has_one_owner_who_is_named(tmp_path: Path) -> None:
    code = "import sys, pathlib; from elmo.io.locks import work_folder_lock\n"
    code += "with work_folder_lock(pathlib.Path(sys.argv[1])): print('in', flush=True); input()"
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "work")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None and owner.stdout.readline() == "in\n"
    with (
        pytest.raises(ElmoError, match=rf"work: process {owner.pid} on \S+ is working here"),
        work_folder_lock(tmp_path / "work"),
    ):
        raise AssertionError
    owner.kill()  # which releases it
    owner.communicate()
    with work_folder_lock(tmp_path / "work"):
        pass


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


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"x": [float("nan"), {"y": float("inf")}], "z": 1.5})
    assert read_json(tmp_path / "a") == {"x": [None, {"y": None}], "z": 1.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a":\n 1,,}', r"x\.json:2: not valid JSON"),
        (b"[1]", r"x\.json: must be an object, found a list"),
        (b'{"a": "\xff"}', r"x\.json: not UTF-8 \(byte 7\)"),
    ],
)
def test_bad_json_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(ElmoError, match=message):
        read_json(tmp_path / "x.json")


def test_json_that_nobody_could_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.io.records.JSON_LIMIT", 100)
    location = Location(tmp_path)
    for write in (
        lambda value: write_json(tmp_path / "a.json", value),
        lambda value: location.write_json("a.json", value),
    ):
        write({"a": "x" * 50})
        with pytest.raises(ElmoError, match=r"a.json: has 1,\d+ bytes.* 100"):
            write({"a": "x" * 1000})
        assert location.read_record("a.json", dict[str, str]) == {"a": "x" * 50}
