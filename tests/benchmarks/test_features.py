"""The comparison of stores reads the text it is given, on both sides."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import features


def test_both_sides_hold_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("he has a gift\n\nthe gift\n" * 20)
    words = [str(tmp_path / "text"), "--size", "small", "--tokens", "10", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", ["features", *words, "--sentences", "2"])
    features.main()
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] == 10
    store, hdf5 = found["sides"]["store float16"], found["sides"]["hdf5 float32"]
    assert hdf5["bytes"] > 10 * 3 * 256 * 4 > store["bytes"] > 10 * 2 * 256 * 2
