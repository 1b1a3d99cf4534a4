"""Ray's head, watched: when it is gone, Ray says nothing for a minute and then ends the process."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .progress import say

LOOK = 5.0  # seconds between looks
TOLD = 15.0  # seconds between two lines
SOONER = 5.0  # seconds before Ray would end the process


@contextmanager
def watched(address: str) -> Iterator[None]:
    """While this lasts: say when the head at HOST:PORT does not answer; where it stays away as long
    as Ray waits for it, end the process with one line and exit code 1.

    A head that keeps its state elsewhere may come back, and the work goes on.
    """
    patience = float(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s", 60)) - SOONER
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, patience, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(address: str, patience: float, over: threading.Event) -> None:
    heard = told = time.monotonic()
    while not over.wait(min(LOOK, patience / 3)):
        now = time.monotonic()
        if _answers(address):
            heard = told = now
        elif now - heard > patience and not over.is_set():
            print(
                f"error: Ray's head at {address} has not answered for {now - heard:.0f} s; when it "
                "is back, run the same command again",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)  # Ray would do the same; nothing can be asked of it any more
        elif now - told > TOLD:
            told = now
            say(f"Ray's head at {address} does not answer, {now - heard:.0f} of {patience:.0f} s")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=LOOK):
        return True
    return False
