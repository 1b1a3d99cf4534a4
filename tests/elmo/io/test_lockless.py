"""A real file system without locks: what needs one is refused, all else is written whole."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.io.atomic import new_file
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.io.locks import take_lock, work_folder_lock
from tests.elmo.io import lockless


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a mounted file system whose locks fail."""
    if not (sys.platform == "linux" and os.geteuid() == 0 and os.access("/dev/fuse", os.R_OK)):
        pytest.skip("mounts a file system: needs Linux, root and /dev/fuse")
    folder = tmp_path_factory.mktemp("lockless")
    (where := folder / "mounted").mkdir()
    (behind := folder / "behind").mkdir()
    command = [sys.executable, lockless.__file__, str(where), str(behind)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None and server.stderr is not None
        if server.stdout.readline() != b"mounted\n":
            pytest.skip(f"mounts a file system: {server.stderr.read().decode().splitlines()[-1]}")
        try:
            yield where
        finally:
            lockless.unmount(str(where))
    assert server.returncode == 0


def test_a_work_folder_needs_a_lock(served: Path) -> None:
    with (
        pytest.raises(ElmoError, match=r"work: its file system has no locks; choose another"),
        work_folder_lock(served / "work"),
    ):
        raise AssertionError


def test_files_and_folders_are_written_whole_without_one(served: Path) -> None:
    with (served / "file").open("w") as file:
        assert take_lock(file.fileno()) is None
    with new_file(served / "file") as new:
        new.write_text("whole")
    for text in ("old", "new"):
        with new_folder(Location(served / "out"), ours=["mark"]) as folder:
            (folder / "mark").write_text(text)
    assert (served / "file").read_text() == "whole"
    assert (served / "out" / "mark").read_text() == "new"
    assert not [path.name for path in served.iterdir() if path.name.startswith(".")]


def test_a_name_is_given_once_without_one(served: Path) -> None:
    location = Location(served / "store")
    assert location.create("name", b"first") and not location.create("name", b"second")
    assert location.read("name") == b"first" and location.names() == ["name"]


def test_without_one_what_a_writer_left_goes_after_a_day(served: Path) -> None:
    """Nobody can tell there whether its writer lives."""
    location = Location(served / "parts")
    with location.temporary() as path:
        assert location.sweep() == [] and path.exists()
        long_ago = time.time() - 25 * 3600
        os.utime(path, (long_ago, long_ago))
        assert location.sweep() == [path.name] and not path.exists()
