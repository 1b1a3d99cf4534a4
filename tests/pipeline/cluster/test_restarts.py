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
    """The last worker dies `deaths` times, `seconds` after its start."""
    deaths = Path(config["folder"]) / "deaths"
    if deaths.exists() and len(deaths.read_text()) == config["deaths"]:
        return size
    if rank == size - 1:
        time.sleep(config["seconds"])
        with deaths.open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    raise AssertionError("the work went on with a worker less")


@pytest.mark.ray
def test_a_worker_that_is_lost_each_time_ends_in_one_line(
    tmp_path: Path, one_session: None
) -> None:
    line = (
        r"^train: (worker 1 lost|its workers did not start).* after restart 1 .* again to resume$"
    )
    config = {"folder": str(tmp_path), "deaths": 2, "seconds": 2}
    with pytest.raises(ElmoError, match=line):
        fit(tmp_path, TWO_WORKERS, loop, config)
    assert (tmp_path / "deaths").read_text() == "xx"


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


@pytest.mark.ray
def test_the_work_goes_on_after_a_worker_is_lost_at_its_start(
    tmp_path: Path, one_session: None
) -> None:
    """Ray Train restarts nothing then."""
    config = {"folder": str(tmp_path), "deaths": 1, "seconds": 0}
    assert fit(tmp_path, TWO_WORKERS, loop, config) == 2
