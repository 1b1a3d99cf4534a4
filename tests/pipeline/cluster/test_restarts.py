"""A worker that is lost in training: what the terminal says, and with how many it goes on."""

import os
import signal
import socket
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


def test_one_line_for_what_was_lost_at_once(tmp_path: Path) -> None:
    folder = Location(tmp_path)
    for rank, host in enumerate(("a", "b", "c")):
        own = {"host": host, "ip": f"10.0.0.{rank}", "size": 3, "start": "x"}
        (folder / "workers").write_json(f"{rank}.json", own)
    gone = RuntimeError("The actor died because its node has died. Node Id: 1")
    restarts.lost(folder, {1: gone, 2: gone, 0: RuntimeError("NCCL\n  timed out")})
    (file,) = (folder / "losses").names()
    causes = (folder / "losses").record(file, dict[str, str])
    line = restarts._line("pretrain", causes, restarts._workers(folder), 1)
    assert line == (
        "pretrain: worker 0 on a lost: NCCL timed out; worker 1 on b, 2 on c lost: its node was "
        "lost; resuming from the newest checkpoint, restart 1 of 3"
    )
    assert (
        restarts.cause_of(RuntimeError("A worker health check failed. x")) == "it does not answer"
    )
    closed = "gloo: Connection closed by peer [10.0.0.2]:53975. This is typically"
    line = restarts._line("x", {"0": closed, "1": closed}, restarts._workers(folder), 2)
    assert line.startswith("x: worker 2 on c lost: its connection closed; resuming")
    assert restarts._line("x", {"5": "y"}, {}, 4).endswith("given up after 3 restarts")


@pytest.fixture
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
    ended_with = cluster.fit(
        loop,
        {"folder": str(tmp_path)},
        cluster=Cluster(workers=fewest, max_workers=most, cpus=1),
        name="train",
        storage=tmp_path,
        stop=tmp_path / "stop",
    )
    assert ended_with in range(fewest, 3)
    said = capfd.readouterr().err
    worker = f"worker 1 on {socket.gethostname()} lost: its process died; "
    at_start = "train: a worker was lost while all started; starting again, 1 of 3"
    assert f"train: {worker}" in said or at_start in said


def at_once(config: dict[str, Any], rank: int, size: int, device: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.ray
def test_workers_that_die_each_time_end_in_one_line(
    tmp_path: Path, one_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "MAX_RESTARTS", 1)
    with pytest.raises(ElmoError, match=r"workers were lost 2 times.*run the same command again"):
        cluster.fit(
            at_once,
            {},
            cluster=Cluster(workers=1, cpus=1),
            name="train",
            storage=tmp_path,
            stop=tmp_path / "stop",
        )
