"""A worker that is lost in training: the work goes on, or ends in one line."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from elmo.errors import ElmoError
from pipeline.cluster import workers as cluster
from pipeline.settings.cluster import Cluster
from tests.pipeline.cluster.fitting import fit

TWO_WORKERS = Cluster(workers=2, cpus=1, restarts=1, wait_minutes=1)


@pytest.fixture(scope="module")
def one_session() -> Iterator[None]:
    with cluster.session():
        yield


def loop(config: dict[str, Any], rank: int, size: int, device: str) -> int:
    """The last worker dies the first time."""
    died = Path(config["folder"]) / "died"
    if rank == size - 1 and not died.exists():
        time.sleep(config["seconds"])
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if not died.exists():
        time.sleep(600)
    return size


@pytest.mark.ray
@pytest.mark.parametrize("seconds", [2, 0])  # as it starts, Ray Train restarts nothing
def test_the_work_goes_on_after_a_worker_is_lost(
    tmp_path: Path, one_session: None, seconds: float
) -> None:
    config = {"folder": str(tmp_path), "seconds": seconds}
    assert fit(tmp_path, TWO_WORKERS, loop, config) == 2


def faulty(config: dict[str, Any], rank: int, size: int, device: str) -> None:
    """The last worker meets a fault, while the first waits for it."""
    if rank:
        with (Path(config["folder"]) / "starts").open("a") as file:
            file.write("x")
        raise KeyError("a fault")
    torch.distributed.all_reduce(torch.ones(1))


@pytest.mark.ray
def test_an_exception_of_the_loop_is_raised_at_once(tmp_path: Path, one_session: None) -> None:
    with pytest.raises(KeyError, match="a fault"):
        fit(tmp_path, TWO_WORKERS, faulty, {"folder": str(tmp_path)})
    assert (tmp_path / "starts").read_text() == "x"


def at_once(config: dict[str, Any], rank: int, size: int, device: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ray
def test_workers_that_die_each_time_end_in_one_line(tmp_path: Path, one_session: None) -> None:
    line = (
        r"^train: (worker \d lost|its workers did not start).* after restart 1 .* again to resume$"
    )
    with pytest.raises(ElmoError, match=line):
        fit(tmp_path, TWO_WORKERS, at_once)
