"""Ports for the servers that tests start."""

import random
import socket


def free_port() -> int:
    """Return a port that nothing listens on and that no connection is given meanwhile.

    The system gives outgoing connections ports from 32768 on, Ray its workers those from 10002 to
    19999: a server that starts seconds later may find either taken.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
