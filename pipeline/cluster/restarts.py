"""Losses of workers in training: their cause, when to give up, and what the terminal shows.

Each worker, wherever it runs, leaves a small file in the run's folder, by which the driver knows
where it was. The restart itself is in `workers.fit`; the wait for room before it is
`free_cores.hold_cores`.
"""

import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elmo.errors import ElmoError, NotFound
from elmo.io.location import Location, in_parallel

from ..terminal.progress import say

LOSSES = {
    r"node (has )?died|node failure|NodeDied": "its node was lost",
    r"OutOfMemory|running low on memory": "it ran out of memory",
    r"ActorDied|actor died|actor is dead|worker process has died": "its process died",
    r"health check (failed|timed out)": "it does not answer",
}
# Errors of the surviving workers: gloo and NCCL name their source file and the peer's address.
_CONNECTION = re.compile(r"gloo|NCCL|by peer|Connection (closed|reset|refused)|Broken pipe")
_ADDRESS = re.compile(r"\[(?:::ffff:)?(\d[\d.]+|[\da-f]*:[\da-f:]+)\]")


def record_worker_start(folder: Location, rank: int, size: int, ip: str) -> None:
    """Record a training worker's host, IP address and group size in the run's folder.

    This process is the worker, number `rank` of `size`.
    """
    record = {"host": socket.gethostname(), "ip": ip, "size": size, "start": uuid.uuid4().hex}
    (folder / "workers").write_json(f"{rank}.json", record)


def is_worker_loss(error: BaseException) -> bool:
    """Tell whether an error means a lost worker, or a lost peer, and not a failure of the code."""
    return loss_cause(error) in LOSSES.values() or bool(_CONNECTION.search(str(error)))


def loss_cause(error: BaseException) -> str:
    """Return the cause of a Ray error in a few words, such as `its node was lost`."""
    text = " ".join(str(error).split())
    for pattern, cause in LOSSES.items():
        if re.search(pattern, text):
            return cause
    return text[:200] or type(error).__name__


class LossCount:
    """A count of worker losses; prints each, gives up after `limit` without a new checkpoint.

    `folder` is the run's, with its checkpoints; `label` names the training in messages.
    """

    def __init__(self, folder: Location, *, label: str, limit: int) -> None:
        self.folder, self.label, self.limit = folder, label, limit
        self.folders, self.count = self._checkpoints(), 0

    def add(self, failures: Mapping[int, BaseException]) -> None:
        """Count and print one loss of workers, given the error of each rank.

        Raises `ElmoError` at the loss after the last restart that `limit` allows.
        """
        folders = self._checkpoints()
        self.count, self.folders = 1 if folders - self.folders else self.count + 1, folders
        losses = describe_losses(
            {str(rank): loss_cause(error) for rank, error in failures.items()}, self.folder
        )
        if self.count > self.limit:
            raise ElmoError(
                f"{self.label}: {losses}; that is {self.count} losses without a new checkpoint "
                "between: find the cause, then run the same command again to resume"
            )
        count = f"restart {self.count} of {self.limit} without a new checkpoint"
        say(f"{self.label}: {losses}; resuming from the newest checkpoint, {count}")

    def _checkpoints(self) -> set[str]:
        return set((self.folder / "checkpoints").folders())


def describe_losses(causes: Mapping[str, str], folder: Location) -> str:
    """Return one line that names the lost workers, their hosts and the causes.

    `causes` has what `loss_cause` returned by rank, in the run with this `folder`. A lost worker
    breaks the connections of the others: these are not named, but the peer that they can't reach
    is.
    """
    workers = _workers(folder)
    losses = {rank: cause for rank, cause in causes.items() if cause in LOSSES.values()}
    if not losses:
        ranks = {worker["ip"]: rank for rank, worker in workers.items()}
        for rank, cause in causes.items():
            peer = next((ip for ip in _ADDRESS.findall(cause) if ip in ranks), None)
            if peer is not None:
                losses[ranks[peer]] = "its connection closed"
            else:
                losses[rank] = cause
    by_cause: dict[str, set[str]] = {}
    for rank, cause in losses.items():
        host = workers[rank]["host"] if rank in workers else "an unknown node"
        by_cause.setdefault(cause, set()).add(f"{rank} on {host}")
    texts = {reason: ", ".join(sorted(names)) for reason, names in by_cause.items()}
    return "; ".join(f"worker {text} lost: {reason}" for reason, text in texts.items())


@contextmanager
def show_worker_count(
    folder: Location, has_begun: threading.Event, *, label: str
) -> Iterator[None]:
    """Print the number of training workers each time it changes, while the block runs; set the
    event once they have begun.

    `folder` is the run's, where workers record their start; `label` stands at the head of the line.
    """
    (folder / "workers").delete_all((folder / "workers").names())
    with run_alongside(_watch, folder, label, has_begun):
        yield


@contextmanager
def run_alongside(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Call `function(*arguments, stop)` in a thread until the block ends: then `stop` is set."""
    stop = threading.Event()
    thread = threading.Thread(target=function, args=(*arguments, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(folder: Location, label: str, has_begun: threading.Event, stop: threading.Event) -> None:
    ended, start = False, ""
    while not ended:
        ended = stop.wait(0.5 if folder.local else 5)
        try:
            worker = (folder / "workers").read_record("0.json", dict[str, Any])
        except NotFound:
            worker = {"start": "", "size": 0}
        if worker["start"]:
            has_begun.set()
        if start and worker["start"] != start:
            say(f"{label}: {worker['size']} worker{'s' * (worker['size'] > 1)} now")
        start = worker["start"]


def _workers(folder: Location) -> dict[str, Any]:
    location = folder / "workers"
    names = [name for name in location.names() if name.endswith(".json")]
    notes = in_parallel(lambda name: location.read_record(name, dict[str, Any]), names)
    return {name.removesuffix(".json"): note for name, note in zip(names, notes, strict=True)}
