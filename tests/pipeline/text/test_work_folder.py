"""Work folders: kept when a stage fails, gone when it is done, one process at a time."""

import subprocess
import sys
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.text.work_folder import work_folder


def test_finished_pieces_stay_until_the_stage_is_done(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        work_folder(Location(tmp_path / "runs"), "x", Location(tmp_path / "out")) as work,
    ):
        work.write("piece", b"")
        raise RuntimeError
    with work_folder(Location(tmp_path / "runs"), "x", Location(tmp_path / "out")) as work:
        assert work.exists("piece")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_no_piece_was_finished(tmp_path: Path) -> None:
    (tmp_path / "runs" / "of another").mkdir(parents=True)
    with (
        pytest.raises(RuntimeError),
        work_folder(Location(tmp_path / "runs"), "x", Location(tmp_path / "out")),
    ):
        raise RuntimeError
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["of another"]


def test_a_second_process_is_told_who_works_here(tmp_path: Path) -> None:
    code = (
        "import sys; from elmo.io.location import Location\n"
        "from pipeline.text.work_folder import work_folder\n"
        "with work_folder(Location(sys.argv[1]), 'x', Location('out')):\n"
        "    print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ElmoError, match=rf"x-out: process {other.pid} on .* is working here"):
            with work_folder(Location(tmp_path), "x", Location(tmp_path / "out")):
                pass
        other.communicate()
    with work_folder(Location(tmp_path), "x", Location(tmp_path / "out")):
        pass


def test_what_a_killed_process_left_beside_the_output_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from elmo.io.atomic import new_file\n"
        "with new_file(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")])
    (tmp_path / ".out.of-the-user").mkdir()
    assert len(list(tmp_path.iterdir())) == 2
    with work_folder(Location(tmp_path / "runs"), "x", Location(tmp_path / "out")):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".out.of-the-user"]
