"""Ray's head, watched: where it is gone, Ray says nothing for a minute and then ends the process;
where another has taken its place, Ray crashes.

This file is given Ray and imports it nowhere.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .progress import say

LOOK = 1.0  # seconds between looks
TOLD = 15.0  # seconds between two lines
SOONER = 5.0  # seconds before Ray would end the process


@contextmanager
def watched(ray: Any) -> Iterator[None]:
    """While this lasts: say when the head does not answer; where it stays away as long as Ray waits
    for it, or comes back without what it knew, end the process with one line and exit code 1.

    A head that keeps its state elsewhere comes back with it, and the work goes on.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(ray, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(ray: Any, over: threading.Event) -> None:
    address = ray.get_runtime_context().gcs_address
    own = ray._private.worker.global_worker.gcs_client.cluster_id
    patience = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 60)) - SOONER
    heard = told = time.monotonic()
    away = False
    while not over.wait(LOOK):
        now = time.monotonic()
        there = _cluster_id(ray, address) if away else own if _answers(address) else None
        if there is not None:
            if there != own:
                _end(address, "was started anew and does not know this work; run", over)
            heard, told, away = now, now, False
            continue
        away = True
        if now - heard > patience:
            _end(address, f"has not answered for {now - heard:.0f} s; when it is back, run", over)
        elif now - told > TOLD:
            told = now
            say(f"Ray's head at {address} does not answer, {now - heard:.0f} of {patience:.0f} s")


def _end(address: str, what: str, over: threading.Event) -> None:
    """End the process, as Ray would: nothing can be asked of the cluster any more."""
    if over.is_set():
        return
    line = f"error: Ray's head at {address} {what} the same command again"
    print(line, file=sys.stderr, flush=True)
    os._exit(1)


def _cluster_id(ray: Any, address: str) -> Any:
    """Which cluster the head is of; None where it does not answer."""
    if _answers(address):
        with suppress(ray.exceptions.RayError, RuntimeError, OSError):  # it is still starting
            return ray._raylet.GcsClient(address=address).cluster_id
    return None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=5):
        return True
    return False
