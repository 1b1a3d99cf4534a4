"""Losses of workers in training: their cause, when to give up, and what the terminal shows.

The first worker leaves a small file in the run's folder, by which the driver knows that training
has begun, and with how many. The restart itself is in `workers.fit`; the wait for room before it is
`free_cores.hold_cores`.
"""

import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elmo.errors import ElmoError, NotFound
from elmo.io.location import Location

from ..terminal.progress import say

LOSSES = {
    r"node (has )?died|node failure|NodeDied": "its node was lost",
    r"OutOfMemory|running low on memory": "it ran out of memory",
    r"ActorDied|actor died|actor is dead|worker process has died": "its process died",
    r"health check (failed|timed out)": "it does not answer",
}
_WORKERS = "workers.json"  # in the run's folder
# Errors of the surviving workers: gloo and NCCL name their source file.
_CONNECTION = re.compile(r"gloo|NCCL|by peer|Connection (closed|reset|refused)|Broken pipe")


def record_worker_start(folder: Location, size: int) -> None:
    """Record in the run's folder that a group of `size` training workers has started; the first of
    them calls it."""
    folder.write_json(_WORKERS, {"size": size, "start": uuid.uuid4().hex})


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
        losses = describe_losses(failures)
        if self.count > self.limit:
            raise ElmoError(
                f"{self.label}: {losses}; {self.count} losses without a new checkpoint; "
                "find the cause, then run the same command again to resume"
            )
        count = f"restart {self.count} of {self.limit} without a new checkpoint"
        say(f"{self.label}: {losses}; resuming from the newest checkpoint, {count}")

    def _checkpoints(self) -> set[str]:
        return set((self.folder / "checkpoints").folders())


def describe_losses(failures: Mapping[int, BaseException]) -> str:
    """Return one line that names the lost workers by rank, and the causes.

    A lost worker breaks the connections of the others, which are named only if no cause is known.
    """
    causes = {rank: loss_cause(error) for rank, error in failures.items()}
    losses = {rank: cause for rank, cause in causes.items() if cause in LOSSES.values()}
    by_cause: dict[str, list[str]] = {}
    for rank, cause in sorted((losses or dict.fromkeys(causes, "its connection closed")).items()):
        by_cause.setdefault(cause, []).append(str(rank))
    return "; ".join(
        f"worker {', '.join(ranks)} lost: {cause}" for cause, ranks in by_cause.items()
    )


@contextmanager
def show_worker_count(
    folder: Location, has_begun: threading.Event, *, label: str
) -> Iterator[None]:
    """Print the number of training workers each time it changes, while the block runs; set the
    event once they have begun.

    `folder` is the run's, where workers record their start; `label` stands at the head of the line.
    """
    folder.delete(_WORKERS)
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
            worker = folder.read_record(_WORKERS, dict[str, Any])
        except NotFound:
            worker = {"start": "", "size": 0}
        if worker["start"]:
            has_begun.set()
        if start and worker["start"] != start:
            say(f"{label}: {worker['size']} worker{'s' * (worker['size'] > 1)} now")
        start = worker["start"]
