"""A Ray head in processes of its own, which tests kill and start again."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.ports import free_port

TRIES = 3  # a busy machine may be too slow for Ray's own limits
SECONDS = 90.0  # to wait for a head that lives and doesn't answer


class Head:
    """A head without dashboard; the object is a context that ends it."""

    def __init__(self, environment: dict[str, str], cpus: int, gpus: int = 0) -> None:
        self.environment, self.cpus, self.gpus = environment, cpus, gpus
        # Ray's sockets live there, and a socket's path may have 107 bytes.
        self.session = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        for _ in range(TRIES):
            self.port = free_port()
            if self.start():
                return
            self.kill()
        raise AssertionError(f"no head started: {self.log.read_text()[-2000:]}")

    @property
    def log(self) -> Path:
        """What `ray start` printed."""
        return self.session / "start.log"

    @property
    def address(self) -> str:
        """What RAY_ADDRESS is to be."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> bool:
        """Start the head at its port; return whether it answers."""
        ray = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
        ray += [f"--port={self.port}", f"--num-cpus={self.cpus}", "--include-dashboard=false"]
        ray += [f"--num-gpus={self.gpus}"]
        ray += [f"--ray-client-server-port={free_port()}", f"--temp-dir={self.session}"]
        ray += ["--object-store-memory=100000000", "--disable-usage-stats"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ray, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if "Ray runtime started" in self.log.read_text() and self._listens():
                return True
            time.sleep(0.1)
        return False

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End every process of the head at once."""
        with suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            for process in [own, *own.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        with suppress(ProcessLookupError):  # what outlived the process that started it
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Head":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.session, ignore_errors=True)
