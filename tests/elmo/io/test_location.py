"""A name stands for a whole file or for none, and of two writers one gets it."""

import os
import pickle
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location


@pytest.fixture(params=["disk", "memory"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "disk":
        return Location(tmp_path / "folder")
    pytest.importorskip("fsspec")
    return Location(f"memory://{request.node.name}")


def test_files_are_written_read_listed_and_deleted(location: Location) -> None:
    assert location.names() == []
    location.write("b", b"0123456789")
    location.write("b", b"abcdefghij")
    assert location.create("a", b"first")
    assert not location.create("a", b"second")
    assert (location.read("a"), location.read("b")) == (b"first", b"abcdefghij")
    assert (location.size("b"), location.exists("b"), location.exists("c")) == (10, True, False)
    with location.open("b") as stream:
        stream.seek(7)
        assert stream.read(2) == b"hi"
    assert location.names() == ["a", "b"]
    location.delete("a")
    location.delete("a")
    assert location.names() == ["b"]
    assert pickle.loads(pickle.dumps(location)) == location
    with pytest.raises(FileNotFoundError):
        location.read("a")


def test_a_folder_is_listed_while_others_write_and_delete_in_it(tmp_path: Path) -> None:
    location, ended = Location(tmp_path), threading.Event()
    (tmp_path / "inner").mkdir()
    location.write("inner/kept", b"12345")

    def disturb() -> None:
        while not ended.is_set():
            for number in range(20):
                (tmp_path / "inner" / f"file-{number}").touch()
                (tmp_path / f"folder-{number}").mkdir()
            for number in range(20):
                (tmp_path / "inner" / f"file-{number}").unlink()
                (tmp_path / f"folder-{number}").rmdir()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(disturb)
        try:
            for _ in range(300):
                assert location.sizes()["inner/kept"] == 5
        finally:
            ended.set()
        other.result()
    assert location.sizes() == {"inner/kept": 5}


def test_a_written_file_gets_its_name_once(location: Location) -> None:
    for text, given in (("first", True), ("second", False)):
        with location.temporary_file("name") as path:
            path.write_text(text)
            assert location.publish(path, "name") is given
    assert location.read("name") == b"first"
    with pytest.raises(KeyboardInterrupt), location.temporary_file("name") as path:
        path.write_text("half")
        raise KeyboardInterrupt
    assert location.names() == ["name"]


def test_files_are_taken_over_from_a_disk(location: Location, tmp_path: Path) -> None:
    source = Location(tmp_path / "source")
    source.write("name", b"whole")
    location.take_file("name", source)
    source.write("name", b"other")
    location.take_file("name", source)
    assert location.read("name") == b"whole"


def test_of_many_writers_one_gets_the_name(tmp_path: Path) -> None:
    location = Location(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        for round_ in range(20):
            writes = [
                threads.submit(location.create, f"{round_}", f"{n}".encode() * 9000)
                for n in range(8)
            ]
            winners = [n for n, write in enumerate(writes) if write.result()]
            assert len(winners) == 1
            assert location.read(f"{round_}") == f"{winners[0]}".encode() * 9000


def test_names_are_given_once_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "not permitted")))
    location = Location(tmp_path)
    assert location.create("name", b"first")
    assert not location.create("name", b"second")
    assert location.read("name") == b"first"


def test_files_are_readable_by_the_group(tmp_path: Path) -> None:
    location = Location(tmp_path)
    old = os.umask(0o022)
    try:
        location.create("created", b"")
        location.write("written", b"")
    finally:
        os.umask(old)
    for name in ("created", "written"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o644


WRITER = """
import sys
import threading
from elmo.io.location import Location
location = Location(sys.argv[1])
with location.temporary_file("name") as path:
    path.write_text("half")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_the_next_writer_sweeps_what_the_dead_left_alone(tmp_path: Path) -> None:
    location = Location(tmp_path)
    (tmp_path / ".name.of-mine").write_text("not ours")
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(command, cwd=root, text=True, **pipes) as writer:
        assert writer.stdout.readline() == "ready\n"
        location.write("name", b"first")
        assert len(list(tmp_path.iterdir())) == 3
        writer.kill()
    location.write("name", b"second")
    assert location.names() == [".name.of-mine", "name"] and location.folders() == []


@pytest.mark.slow
def test_what_fails_at_a_url_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("s3fs")
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    for location in (Location("s3://bucket/x", options), Location("nothing://x")):
        with pytest.raises(ElmoError, match=f"{location}/name: ") as error:
            location.read("name")
        assert "\n" not in str(error.value)
    for call in ("exists", "size", "open"):
        with pytest.raises(ElmoError, match="http://127.0.0.1:9/name: ClientConnectorError: "):
            getattr(Location("http://127.0.0.1:9"), call)("name")
    with pytest.raises(ElmoError, match="one slash"):
        Location(Path("s3://bucket/x"))
