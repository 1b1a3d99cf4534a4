"""Work of seconds never starts Ray: what begins in this process goes on there while it is short."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elmo.errors import ElmoError
from pipeline.cluster import in_process, pool, workers
from pipeline.settings.cluster import Cluster


class Clock:
    """Seconds that pass with each item of work."""

    def __init__(self, seconds: list[float]) -> None:
        self.now, self.seconds = 0.0, iter(seconds)

    def work(self, item: int) -> int:
        self.now += next(self.seconds)
        return item * item


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What is left to Ray, at each start."""
    left: list[list[int]] = []

    def run(ray: Any, kind: Any, arguments: Any, work: Any, *_: Any) -> Iterator[tuple[int, int]]:
        left.append([item for _, item in work])
        return iter([(number, item * item) for number, item in work])

    monkeypatch.setattr(pool, "run_actors", run)
    monkeypatch.setattr(workers, "session", lambda: contextlib.nullcontext())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return left


@pytest.mark.parametrize(
    ("seconds", "actors", "left"),
    [
        ([5.0, 1.0, 1.0, 1.0], 0, []),  # the first one loads what all need
        ([5.0, 8.0, 8.0, 8.0], 0, [[2, 3]]),
        ([20.0, 1.0, 1.0, 1.0], 0, [[1, 2, 3]]),
        ([1.0, 1.0, 7.0, 16.0], 0, []),
        ([1.0, 1.0, 16.0, 1.0], 0, [[3]]),
        ([90.0, 90.0, 90.0, 90.0], 1, []),
        ([1.0, 1.0, 1.0, 1.0], 2, [[0, 1, 2, 3]]),
    ],
)
def test_ray_is_started_for_what_is_worth_it(
    with_ray: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    seconds: list[float],
    actors: int,
    left: list[list[int]],
) -> None:
    clock = Clock(seconds)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    cluster = Cluster(workers=0, cpus=1, gpu=False, actors=actors)
    found = workers.map_tasks(clock.work, range(4), cluster=cluster, label="work")
    assert list(found) == [0, 1, 4, 9]
    assert with_ray == left


def test_a_named_cluster_does_all_of_it(
    with_ray: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray.example:6379")
    cluster = Cluster(workers=0, cpus=1, gpu=False, actors=0)
    assert list(workers.map_tasks(Clock([]).work, [3], cluster=cluster, label="work")) == [9]
    assert with_ray == [[3]]


class Pair:
    """An actor whose calls end only when two are at work, or when it is stopped."""

    def __init__(self) -> None:
        self.both, self.stopped = threading.Barrier(2), threading.Event()

    def __call__(self, item: int) -> int:
        if item < 0:
            raise ElmoError("bad")
        if item == 9:
            assert self.stopped.wait(60), "nothing stopped it"
            raise RuntimeError("stopped")
        self.both.wait(60)
        return item * item

    def stop(self) -> None:
        self.stopped.set()


HERE = Cluster(workers=0, cpus=1, gpu=False, actors=0)


def test_several_threads_of_this_process_work_side_by_side(with_ray: list[list[int]]) -> None:
    found = workers.map_actors(Pair, [], range(4), cluster=HERE, label="work", threads=2)
    assert sorted(found) == [0, 1, 4, 9]
    assert with_ray == []


def test_an_error_in_one_thread_ends_the_work_of_the_others(with_ray: list[list[int]]) -> None:
    found = workers.map_actors(Pair, [], [9, -1, 2, 3], cluster=HERE, label="work", threads=2)
    with pytest.raises(ElmoError, match="bad"):
        list(found)


def test_threads_hand_over_what_is_worth_ray(
    with_ray: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "MIN_RAY_SECONDS", 0.0)
    left: list[list[int]] = []

    def run(ray: Any, kind: Any, arguments: Any, work: Any, *_: Any) -> Iterator[int]:
        left.append(work)
        return iter([item * item for item in work])

    monkeypatch.setattr(pool, "run_actors", run)
    found = workers.map_actors(Pair, [], range(8), cluster=HERE, label="work", threads=2)
    assert sorted(found) == [item * item for item in range(8)]
    assert len(left) == 1 and 0 < len(left[0]) < 8
