"""The room that a cluster has, and the wait for it, by a clock and nodes of our own."""

from types import SimpleNamespace
from typing import Any

import pytest

from elmo.errors import ElmoError
from pipeline.cluster import free_cores
from pipeline.settings.cluster import Cluster

NODES = [  # cores and GPUs, and whether the node lives
    {"Resources": {"CPU": cores, "GPU": gpus}, "Alive": alive}
    for cores, gpus, alive in ((5.0, 1.0, True), (8.0, 0.0, True), (9.0, 9.0, False))
]


def test_living_nodes_alone_have_room() -> None:
    ray = SimpleNamespace(nodes=lambda: NODES)
    room = [free_cores.placeable_workers(ray, cpus=2, gpus=gpus) for gpus in (0, 1)]
    assert room == [6, 1]


def test_each_wait_has_its_minutes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line after ten seconds and then every half minute."""
    clock = [0.0]
    monkeypatch.setattr(free_cores, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    empty: Any = SimpleNamespace(cluster_resources=dict, available_resources=dict)
    cluster = Cluster(workers=1, cpus=1, gpu=False, actors=0, wait_minutes=1)
    report = free_cores.WaitReport("pretrain", cluster)
    for clock[0] in (0.0, 9.0, 11.0, 40.0, 42.0, 60.0):
        report.print_missing("a core", empty)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in lines] == ["0:11 of 1:00", "0:42 of 1:00"]
    report.reset()
    for clock[0] in (61.0, 121.0):
        report.print_missing("a core", empty)
    clock[0] = 122.0
    with pytest.raises(ElmoError, match="pretrain: waited 1:00 for a core"):
        report.print_missing("a core", empty)
