"""Count the cores and GPUs of a Ray cluster, and wait for free ones.

The `ray` module is passed in, not imported here.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elmo.errors import ElmoError

from ..settings.cluster import Cluster
from ..terminal.progress import clock_time, say

POLL_SECONDS = 1.0


@contextmanager
def hold_cores(ray: Any, cluster: Cluster, report: "WaitReport", *, is_own: bool) -> Iterator[Any]:
    """Wait until the cluster has free cores and GPUs for all training workers; hold them during the
    block, as a placement group, which an autoscaler sees too.

    `ray` is the connected module `ray`. Raises `ElmoError` after `wait_minutes`. If this process
    started Ray (`is_own`), no node can join: if this machine is too small, it is raised at once.
    """
    requirement = f"{cluster.workers} × {cluster.cpus} cores" + " and 1 GPU" * cluster.gpu
    gpus = int(cluster.gpu)
    if is_own and placeable_workers(ray, cpus=cluster.cpus, gpus=gpus) < cluster.workers:
        raise ElmoError(
            f"{report.label}: {cluster.workers} workers need {requirement}, but there are "
            f"{_describe_resources(ray)}; lower workers or cpus"
        )
    resources = {"CPU": cluster.cpus, **({"GPU": 1} if cluster.gpu else {})}
    group = ray.util.placement_group([resources] * cluster.workers)
    try:
        while not group.wait(POLL_SECONDS):
            report.print_missing(requirement, ray)
        yield group
    finally:
        ray.util.remove_placement_group(group)


def placeable_workers(ray: Any, *, cpus: float, gpus: int) -> int:
    """Return how many workers with `cpus` cores and `gpus` GPUs each fit on the nodes when idle.

    `ray` is the connected module `ray`.
    """
    count = 0
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"]:
            slots = int(resources.get("CPU", 0) // cpus)
            count += min(slots, int(resources.get("GPU", 0) // gpus)) if gpus else slots
    return count


def _describe_resources(ray: Any) -> str:
    """Return the cores and GPUs of the living nodes as text."""
    all_resources, free_resources = ray.cluster_resources(), ray.available_resources()
    return (
        f"{all_resources.get('CPU', 0):.0f} cores and {all_resources.get('GPU', 0):.0f} GPUs, "
        f"{free_resources.get('CPU', 0):.0f} and {free_resources.get('GPU', 0):.0f} of them free"
    )


class WaitReport:
    """Prints what the work is waiting for, after 10 s and then twice a minute, up to a limit.

    Each line begins with `label`; the limit is `wait_minutes` of `cluster`.
    """

    def __init__(self, label: str, cluster: Cluster) -> None:
        self.label, self.limit = label, 60 * cluster.wait_minutes
        self.start_time: float | None = None
        self.last_report_time = 0.0

    def print_missing(self, requirement: str, ray: Any) -> None:
        """Print the missing `requirement`, if a line is due; raise `ElmoError` after
        `wait_minutes`.

        Call it at each poll; the wait begins with the first call after `reset`.
        """
        time_now = time.monotonic()
        if self.start_time is None:
            self.start_time, self.last_report_time = time_now, time_now - 20
        if time_now - self.start_time > self.limit:
            raise ElmoError(
                f"{self.label}: waited {clock_time(self.limit)} for {requirement}; the cluster has "
                f"{_describe_resources(ray)}; add nodes, request less, or raise wait_minutes"
            )
        if time_now - self.last_report_time > 30:
            self.last_report_time = time_now
            say(
                f"{self.label}: waiting for {requirement}: the cluster has "
                f"{_describe_resources(ray)}; "
                f"{clock_time(time_now - self.start_time)} of {clock_time(self.limit)}"
            )

    def reset(self) -> None:
        """End the wait, so that the next one starts from zero."""
        self.start_time = None
