"""Nothing half-written, nothing lost."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from elmo.errors import ElmoError
from elmo.io.atomic import delete_leftovers, new_file, new_file_if_absent, write_json
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.records import digest, read_json


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
    monkeypatch.setattr("elmo.io.locks.fcntl.flock", Mock(side_effect=KeyboardInterrupt))
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


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".out.0123abcd").mkdir()
    (tmp_path / ".other.0123abcd").touch()
    kept = ["out", ".out", ".out.txt", ".out.0123abcde"]
    for name in kept:
        (tmp_path / name).touch()
    delete_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    delete_leftovers(tmp_path / "absent")


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


def test_json_is_the_same_bytes_for_the_same_value(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": "é"})
    write_json(tmp_path / "b", {"a": "é", "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": "é", "b": 1}
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1}) != digest({"a": 1, "b": 2})


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
