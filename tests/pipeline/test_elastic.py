"""Training on one to two workers while a node comes and goes: the steps are those of one worker."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.train.loop import fit
from elmo.train.step import WorkerGroup
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from tests.elmo.run_job import make_job
from tests.pipeline.cluster import fitting

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 240  # seconds that Ray Train may take to take a node, or to notice that one has gone
EPOCHS = 5000  # more than the test needs: a file ends the training


def loop(config: dict[str, Any], rank: int, size: int, device: str) -> int:
    """Train the tiny model, slowly; the first worker notes each start's size, and stops when told
    to."""
    folder = Path(config["folder"])
    torch.set_num_threads(1)
    job = make_job(folder, epochs=EPOCHS, minutes=0.0, stop=folder / "enough")

    def report(kind: str, figures: dict[str, float]) -> None:
        if kind == "train":
            with (folder / "sizes").open("a") as file:
                file.write(f"{size} {figures['step']:.0f}\n")
            time.sleep(0.3)

    try:
        fit(job, workers=WorkerGroup(rank, size), report=report if rank == 0 else lambda *_: None)
    except KeyboardInterrupt:
        return size
    raise AssertionError("no file said that it was enough")


@pytest.fixture
def nodes() -> Iterator[Any]:
    """A head that has no core."""
    workers._set_up()
    import ray
    from ray.cluster_utils import Cluster as Nodes

    head = {"num_cpus": 0, "object_store_memory": 80 << 20}
    started = Nodes(initialize_head=True, head_node_args=head)
    try:
        environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(address=started.address, log_to_driver=False, runtime_env=environment)
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


def start_node(address: str) -> "subprocess.Popen[bytes]":
    """A node of one core, in processes of its own: Ray starts none from a thread."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", address]
    options = ["--num-cpus", "1", "--object-store-memory", str(80 << 20), "--block"]
    return subprocess.Popen(
        command + options,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_node(node: "subprocess.Popen[bytes]") -> None:
    """Take the whole node away at once."""
    os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def sizes(folder: Path) -> list[int]:
    """The numbers of workers that have trained, one after another."""
    file = folder / "sizes"
    seen = [int(line.split()[0]) for line in file.read_text().splitlines()] if file.exists() else []
    return [size for k, size in enumerate(seen) if k == 0 or seen[k - 1] != size]


@pytest.mark.long
def test_one_two_and_one_worker_take_the_steps_of_one(tmp_path: Path, nodes: Any) -> None:
    make_job(tmp_path)  # writes the shards
    problems: list[str] = []

    def until(expected: list[int]) -> None:
        began = time.monotonic()
        while sizes(tmp_path) != expected:
            if time.monotonic() - began > LONGEST:
                problems.append(f"{sizes(tmp_path)} workers instead of {expected}")
                return
            time.sleep(0.2)
        time.sleep(2)  # some steps more

    def come_and_go() -> None:
        until([1])
        second = start_node(nodes.address)
        try:
            until([1, 2])
        finally:
            kill_node(second)
        until([1, 2, 1])
        (tmp_path / "enough").touch()

    nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
    director = threading.Thread(target=come_and_go, daemon=True)
    director.start()
    ended = fitting.fit(
        tmp_path, Cluster(workers=1, max_workers=2, cpus=1), loop, {"folder": str(tmp_path)}
    )
    director.join()
    assert (problems, ended) == ([], 1)

    elastic = np.loadtxt(tmp_path / "job" / "train.tsv", skiprows=1)
    alone = tmp_path / "alone"
    alone.mkdir()

    def report(kind: str, figures: dict[str, float]) -> None:
        if kind == "train" and figures["step"] >= elastic[-1, 0]:
            (alone / "enough").touch()

    with pytest.raises(KeyboardInterrupt):
        job = make_job(alone, epochs=EPOCHS, stop=alone / "enough")
        fit(job, workers=WorkerGroup(), report=report)
    one = np.loadtxt(alone / "job" / "train.tsv", skiprows=1)[: len(elastic)]
    np.testing.assert_array_equal(elastic[:, :2], one[:, :2])  # steps, and tokens read until each
    np.testing.assert_allclose(elastic[:, 2], one[:, 2], rtol=1e-3)  # training perplexity
