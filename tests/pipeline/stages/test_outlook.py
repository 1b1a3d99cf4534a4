"""The size of the store that a text will become, said where it is large."""

from pathlib import Path

import pytest

from pipeline.settings import params as settings
from pipeline.stages import outlook

ROOT = Path(__file__).resolve().parents[3]
BILLION = 10**9


def test_vectors_are_held_against_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five gigabytes of text, a billion tokens of two vectors of 256 float16: a terabyte."""
    params = settings.load(ROOT / "params.yaml")
    monkeypatch.setattr(outlook, "free_bytes", lambda home: 200 * BILLION)
    outlook.warn_of_large_store(BILLION, params=params, home=tmp_path)
    (room,) = capsys.readouterr().err.splitlines()
    assert "will take 1024.0 GB, 200.0 GB are free; to make it less, set features.layers" in room
    assert "(512.0 GB) or features.dtype to int8 (half" in room and "corpus.domain" in room
    monkeypatch.setattr(outlook, "free_bytes", lambda home: 11_000 * BILLION)
    outlook.warn_of_large_store(BILLION, params=params, home=tmp_path)
    outlook.warn_of_large_store(100_000, params=params, home=tmp_path)
    assert capsys.readouterr().err == ""


def test_a_disk_is_asked_for_the_room_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert outlook.free_bytes(tmp_path / "a" / "b") > 0
