"""The text that the comparison of stores reads."""

from pathlib import Path

from benchmarks.features import _lines


def test_lines_are_read_until_they_hold_so_many_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n\nc d\ne f\n")
    assert _lines(tmp_path / "text", 3) == [["a", "b"], ["c", "d"]]
