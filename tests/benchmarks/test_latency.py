"""Requests to a store are counted: none that grow with the corpus wait for one another."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from benchmarks import latency
from pipeline.cluster import workers


@pytest.fixture(autouse=True)
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store, which counts but does not sleep; what a benchmark changes is put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "tasks", workers.tasks)
    fsspec.register_implementation("slow", latency.Slow, clobber=True)
    yield
    latency.Slow.store.clear()


def test_no_request_of_the_driver_waits_for_as_many_others_as_there_are_shards(
    tmp_path: Path,
) -> None:
    few, many = ({}, {})
    for shards, found in ((12, few), (48, many)):
        home = tmp_path / str(shards)
        home.mkdir()
        found |= latency.measure(shards, home)
    assert few.keys() == many.keys()
    for stage, figures in many.items():
        waiting = "one after another"
        assert figures[waiting] <= few[stage][waiting] + 2, stage
        more = figures["requests"] - few[stage]["requests"]
        assert more <= 4 * 36 + 2, stage  # two to copy a file, and a part is two files


def test_requests_for_workers_and_project_files_are_made_at_once(tmp_path: Path) -> None:
    figures = latency.measure_rest(tmp_path)
    assert {one["one after another"] for one in figures.values()} == {1}  # a list of names
    assert figures[f"a loss among {latency.NOTES} workers"]["requests"] == 2 * latency.NOTES + 1
    assert figures[f"a project of {latency.FILES} files fetched"]["requests"] == latency.FILES + 1
