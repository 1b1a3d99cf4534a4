"""Work folders: kept when a stage fails, gone when it is done, one process at a time."""

from pathlib import Path

import pytest

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
