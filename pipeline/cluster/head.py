"""Watch Ray's head node while a session lasts.

Without this, a head that is lost means a minute of silence and then Ray's abort of the process, and
a head that was restarted without its state crashes Ray's C++ code in this process.

Ray exposes a cluster's id only through private names: two of them are used here, and nowhere else.
Without them a head that came back with its state looks like one that lost it. This file is given
Ray and imports it nowhere.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..terminal.progress import say

LOOK = 1.0  # seconds between two checks
TOLD = 15.0  # seconds between two lines
SOONER = 5.0  # seconds before Ray would abort the process


@contextmanager
def watch_head(ray: Any) -> Iterator[None]:
    """Report when Ray's head node stops answering; end the process if it does not come back.

    `ray` is the module `ray`, connected. A head that comes back with its state is only reported.
    One that stays away for as long as Ray waits, or comes back without its state, ends the process
    with one line and exit code 1.
    """
    address = ray.get_runtime_context().gcs_address
    cluster_id = ray._private.worker.global_worker.gcs_client.cluster_id
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(ray, address, cluster_id, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * LOOK)


def _watch(ray: Any, address: str, cluster_id: Any, over: threading.Event) -> None:
    limit = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 60))
    patience = max(limit - SOONER, LOOK)
    answered = told = time.monotonic()
    away = False
    while not over.wait(LOOK):
        now = time.monotonic()
        # A head that has answered all the time can't have been replaced.
        there = accepts_connections(address) and (_cluster_id(ray, address) if away else cluster_id)
        if there:
            if there != cluster_id:
                _end(address, "was restarted without its state; run", over)
            answered, told, away = now, now, False
            continue
        away = True
        if now - answered > patience:
            _end(
                address, f"has not answered for {now - answered:.0f} s; when it is back, run", over
            )
        elif now - told > TOLD:
            told = now
            say(
                f"Ray's head at {address} does not answer, {now - answered:.0f} of {patience:.0f} s"
            )


def _end(address: str, what: str, over: threading.Event) -> None:
    """End the process, as Ray would: nothing can be asked of the cluster any more."""
    if over.is_set():
        return
    line = f"error: Ray's head at {address} {what} the same command again"
    print(line, file=sys.stderr, flush=True)
    os._exit(1)


def _cluster_id(ray: Any, address: str) -> Any:
    """The id of the head's cluster; None while the head is still starting."""
    with suppress(ray.exceptions.RayError, RuntimeError, OSError):
        return ray._raylet.GcsClient(address=address).cluster_id
    return None


def accepts_connections(address: str) -> bool:
    """Tell whether something accepts TCP connections at `address`, which is HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout=5):
        return True
    return False
