"""The comparison of stores: the text it reads, and that it runs."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import features


def test_lines_are_read_until_they_hold_so_many_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n\nc d\ne f\n")
    assert features._lines(tmp_path / "text", 3) == [["a", "b"], ["c", "d"]]


def test_every_side_holds_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("he has a gift\nthe gift\n" * 20)
    words = [str(tmp_path / "text"), "--dim", "16", "--tokens", "100", "--repeat", "1"]
    monkeypatch.setattr(sys, "argv", ["features", *words, "--sentences", "5"])
    features.main()
    found = json.loads(capsys.readouterr().out)
    assert found["tokens"] >= 100 and found["sides"].keys() >= {"store float16", "store int8"}
    store, plain = (found["sides"][name] for name in ("store float16", "numpy memmap float16"))
    assert 0 < store["bytes"] and plain["bytes"] == 3 * 16 * 2 * found["tokens"]
