"""What the terminal is told when a worker in training is lost and all begin again.

The workers and Ray Train's controller, wherever they run, leave small files in the run's folder;
the driver shows what is new in them.
"""

import json
import os
import re
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.files import write_json

from .pool import say

MOST = 3  # restarts after a loss
LOSSES = {
    r"node (has )?died|node failure|NodeDied": "its node was lost",
    r"OutOfMemory|running low on memory": "it ran out of memory",
    r"ActorDied|actor died|actor is dead|worker process has died": "its process died",
    r"health check (failed|timed out)": "it does not answer",
}


def began(folder: Path, rank: int, size: int, ip: str) -> None:
    """A worker tells where it is, and of how many it is one."""
    own = {"host": socket.gethostname(), "ip": ip, "size": size, "start": uuid.uuid4().hex}
    write_json(folder / "workers" / f"{rank}.json", own)


def lost(folder: Path, failures: Mapping[int, BaseException]) -> None:
    """The controller tells which workers failed."""
    causes = {str(rank): cause_of(error) for rank, error in failures.items()}
    write_json(folder / "losses" / f"{uuid.uuid4().hex}.json", causes)


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
def shown(folder: Path, *, label: str) -> Iterator[None]:
    """Say what is lost as it is, from the workers and the controller."""
    for old in [*(folder / "losses").glob("*.json"), *(folder / "workers").glob("*.json")]:
        old.unlink()
    done = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, label, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(folder: Path, label: str, done: threading.Event) -> None:
    seen: set[str] = set()
    ended, start = False, ""
    while not ended:
        ended = done.wait(0.5)
        for path in sorted((folder / "losses").glob("*.json"), key=os.path.getmtime):
            if path.name not in seen:
                seen.add(path.name)
                say(_line(label, json.loads(path.read_text()), _workers(folder), len(seen)))
        first = _workers(folder).get("0", {"start": "", "size": 0})
        if first["start"] != start and seen:
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
    if count > MOST:
        return f"{label}: {what}; given up after {MOST} restarts"
    return f"{label}: {what}; resuming from the newest checkpoint, restart {count} of {MOST}"


def _workers(folder: Path) -> dict[str, Any]:
    files = (folder / "workers").glob("*.json")
    return {path.stem: json.loads(path.read_text()) for path in files}
