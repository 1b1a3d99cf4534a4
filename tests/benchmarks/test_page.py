"""The page of benchmarks is drawn from the figures that commands left, and from nothing else."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as page
from benchmarks.rows import BENCHMARKS, Benchmark, Row


def test_the_page_shows_the_figures_that_are_kept() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.redraw_table(text, page._read_results()) == text, "run: python -m benchmarks"


def test_every_row_has_a_command_and_its_figures_are_kept() -> None:
    kept = page._read_results()
    for benchmark in BENCHMARKS:
        assert importlib.util.find_spec(f"benchmarks.{benchmark.command[0]}")
        assert {"machine", "date", "commit"} <= kept[benchmark.name].keys(), benchmark.name
        assert any(row.cell(kept[benchmark.name]) for row in benchmark.rows), benchmark.name


def test_a_benchmark_is_run_and_replaces_its_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (Row("units", "", lambda figures: figures["machine"]["processor"] + " found"),)
    small = Benchmark("units", ("machine", "{text}"), 1, rows)
    other = replace(small, name="other")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "BENCHMARKS", (small, other))
    old = {"machine": {"processor": "Old"}, "date": "2026-01-01", "commit": "abc"}
    (tmp_path / "other.json").write_text(json.dumps(old))
    page.save_figures(small, page._measure(small, {"text": "t"}))
    drawn = page.redraw_table("# B\n<!-- rows -->\nwas\n<!-- end -->\n", page._read_results())
    assert " found | " in drawn and "`benchmarks.machine text`" in drawn
    assert "| Old found | Old (AVX2 alone), 2 cores, 2026-01-01, abc |" in drawn
    assert "was" not in drawn


def test_what_lacks_its_options_is_not_run() -> None:
    (steps,) = (one for one in BENCHMARKS if one.name == "training_steps")
    assert page._should_run(steps, {"text": "t"}, [])
    assert not page._should_run(steps, {"raw": "t"}, [])
    assert not page._should_run(steps, {"text": "t"}, ["features"])
    with pytest.raises(SystemExit, match="training_steps needs --text"):
        page._should_run(steps, {}, ["training_steps"])
