"""MLflow's own server in processes of its own, for tests that kill it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from tests.ports import free_port


class MlflowServer:
    """MLflow's own server on a database, which can be killed and started again."""

    def __init__(self, database: Path) -> None:
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        self.command += ["--port", str(self.port), "--workers", "1"]
        self.command += ["--backend-store-uri", f"sqlite:///{database}"]
        self.command += ["--artifacts-destination", str(database.with_name("artifacts"))]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )
        while True:
            assert self.process.poll() is None
            with suppress(OSError), urlopen(f"{self.uri}/health", timeout=10):
                return
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill it with its workers, at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
