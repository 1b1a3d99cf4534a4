"""What the terminal shows when a worker in training is lost and all begin again.

The workers and Ray Train's controller, wherever they run, leave small files in the run's folder;
the driver shows what is new in them. The restart itself is in `workers.fit`; the wait for room
before it is `pool.Waiting`.
"""

import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elmo.io.location import Location

from ..terminal.progress import say

MAX_RESTARTS = 3  # restarts after a loss
LOSSES = {
    r"node (has )?died|node failure|NodeDied": "its node was lost",
    r"OutOfMemory|running low on memory": "it ran out of memory",
    r"ActorDied|actor died|actor is dead|worker process has died": "its process died",
    r"health check (failed|timed out)": "it does not answer",
}


def began(folder: Location, rank: int, size: int, ip: str) -> None:
    """A worker tells where it is, and of how many it is one."""
    own = {"host": socket.gethostname(), "ip": ip, "size": size, "start": uuid.uuid4().hex}
    (folder / "workers").write_json(f"{rank}.json", own)


def lost(folder: Location, failures: Mapping[int, BaseException]) -> None:
    """The controller tells which workers failed."""
    causes = {str(rank): cause_of(error) for rank, error in failures.items()}
    (folder / "losses").write_json(f"{time.time_ns()}-{uuid.uuid4().hex}.json", causes)


def is_loss(error: BaseException) -> bool:
    """Whether a worker was lost, rather than failed by itself."""
    return cause_of(error) in LOSSES.values()


def cause_of(error: BaseException) -> str:
    """Ray's many lines as a few words."""
    text = " ".join(str(error).split())
    for pattern, cause in LOSSES.items():
        if re.search(pattern, text):
            return cause
    return text[:200] or type(error).__name__


@contextmanager
def shown(folder: Location, *, label: str) -> Iterator[None]:
    """Say what is lost as it is, from the workers and the controller."""
    for kind in ("losses", "workers"):
        for name in (folder / kind).names():
            (folder / kind).delete(name)
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, label, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(folder: Location, label: str, done: threading.Event) -> None:
    seen: set[str] = set()
    ended, start = False, ""
    while not ended:
        ended = done.wait(0.5 if folder.local else 5)
        for name in (folder / "losses").names():  # by time
            if name not in seen and name.endswith(".json"):
                seen.add(name)
                causes = (folder / "losses").record(name, dict[str, str])
                say(_line(label, causes, _workers(folder), len(seen)))
        first = _workers(folder).get("0", {"start": "", "size": 0})
        if start and first["start"] != start:
            say(f"{label}: {first['size']} worker{'s' * (first['size'] > 1)} now")
        start = first["start"]


def _line(label: str, causes: dict[str, str], workers: dict[str, Any], count: int) -> str:
    """One line for all workers that were lost at once.

    A worker that only lost its connection to another one names that one.
    """
    ranks = {worker["ip"]: rank for rank, worker in workers.items()}
    by_cause: dict[str, set[str]] = {}
    for rank, cause in causes.items():
        if (peer := re.search(r"by peer \[([\d.]+|[\da-f:]+)\]", cause)) and peer[1] in ranks:
            rank, cause = ranks[peer[1]], "its connection closed"
        host = workers[rank]["host"] if rank in workers else "an unknown node"
        by_cause.setdefault(cause, set()).add(f"{rank} on {host}")
    what = "; ".join(
        f"worker {', '.join(sorted(who))} lost: {why}" for why, who in by_cause.items()
    )
    if count > MAX_RESTARTS:
        return f"{label}: {what}; given up after {MAX_RESTARTS} restarts"
    restart = f"restart {count} of {MAX_RESTARTS}"
    return f"{label}: {what}; resuming from the newest checkpoint, {restart}"


def _workers(folder: Location) -> dict[str, Any]:
    own = folder / "workers"
    names = [name for name in own.names() if name.endswith(".json")]
    return {name.removesuffix(".json"): own.record(name, dict[str, Any]) for name in names}
