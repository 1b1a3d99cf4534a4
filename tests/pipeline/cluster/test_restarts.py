"""A worker that is lost in training: what the terminal says, and with how many it goes on."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.cluster import restarts
from pipeline.cluster import workers as cluster
from pipeline.settings.cluster import Cluster
from tests.pipeline.cluster.fitting import fit

GONE = RuntimeError("The actor died because its node has died. Node Id: 1")
CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
    "[::ffff:10.0.0.2]:53975. This is typically"
)


def test_one_line_names_what_was_lost_and_not_who_missed_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = restarts.LossCount(Location(tmp_path), label="pretrain", limit=3)
    losses.add({1: GONE, 2: GONE, 0: RuntimeError(CLOSED)})
    said = capsys.readouterr().err.strip()
    assert said.startswith("pretrain: worker 1, 2 lost: its node was lost; ") and " 1 of 3 " in said
    losses.add({0: RuntimeError(CLOSED), 1: RuntimeError(CLOSED)})
    said = capsys.readouterr().err
    assert "worker 0, 1 lost: its connection closed; " in said and "gloo" not in said
    unhealthy = RuntimeError("A worker health check failed. x")
    assert restarts.loss_cause(unhealthy) == "it does not answer"
    assert restarts.is_worker_loss(RuntimeError(CLOSED)) and not restarts.is_worker_loss(
        RuntimeError("a bug")
    )


def test_losses_count_anew_with_each_checkpoint(tmp_path: Path) -> None:
    losses = restarts.LossCount(Location(tmp_path), label="pretrain", limit=2)
    for step in range(5):
        losses.add({1: GONE})
        losses.add({1: GONE})
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    losses.add({1: GONE})
    losses.add({1: GONE})
    with pytest.raises(ElmoError, match=r"worker 1 lost: its node was lost; 3 losses"):
        losses.add({1: GONE})


@pytest.fixture(scope="module")
def one_session() -> Iterator[None]:
    with cluster.session():
        yield


def loop(config: dict[str, Any], rank: int, size: int, device: str) -> int:
    """The last worker dies the first time."""
    died = Path(config["folder"]) / "died"
    if rank == size - 1 and not died.exists():
        time.sleep(2)  # past the start, which Ray Train watches apart
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if not died.exists():
        time.sleep(600)
    return size


@pytest.mark.ray
@pytest.mark.parametrize("most", [0, 2])
def test_a_lost_worker_is_told_and_the_work_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], one_session: None, most: int
) -> None:
    """With exactly two workers, and with one to two of which there is room for two."""
    fewest = 1 if most else 2
    ended_with = fit(
        tmp_path, Cluster(workers=fewest, max_workers=most, cpus=1), loop, {"folder": str(tmp_path)}
    )
    assert ended_with in range(fewest, 3)
    said = capfd.readouterr().err
    assert "train: worker 1 lost: its process died; " in said and "restart 1 of 3" in said


def at_once(config: dict[str, Any], rank: int, size: int, device: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ray
def test_workers_that_die_each_time_end_in_one_line(tmp_path: Path, one_session: None) -> None:
    with pytest.raises(ElmoError, match=r"2 losses without .*run the same command again"):
        fit(tmp_path, Cluster(workers=1, cpus=1, restarts=1), at_once)
