"""Ray's head gone: lines while it is waited for, then one that says what to do."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import time
from pipeline import head, workers
head.LOOK, head.TOLD = 1.0, 2.0
with workers.session():
    print("connected", flush=True)
    time.sleep(120)
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_head_that_is_gone_is_told_and_ends_the_process(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    ray += [f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    ray += ["--object-store-memory=100000000", "--disable-usage-stats"]
    quiet = subprocess.DEVNULL
    head = subprocess.Popen(
        ray, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
    )
    own = environment | {"RAY_ADDRESS": f"127.0.0.1:{port}"}
    own |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "14"}
    with (tmp_path / "said").open("w") as said:
        for _ in range(20):  # until the head is up
            driver = subprocess.Popen(
                [sys.executable, "-c", CODE], env=own, stdout=subprocess.PIPE, stderr=said
            )
            assert driver.stdout is not None
            if driver.stdout.readline() == b"connected\n":
                break
            driver.wait()
            said.truncate(0)
    try:
        for process in psutil.Process(head.pid).children(recursive=True):
            process.kill()
        assert driver.wait(60) == 1
        lines = (tmp_path / "said").read_text().strip("\0").splitlines()
        told = [line for line in lines if "does not answer, " in line]
        assert told and told[0].startswith("  Ray's head at ")
        assert lines[-1].startswith("error: Ray's head at ")
        assert lines[-1].endswith("when it is back, run the same command again")
        assert len([line for line in lines if "error" in line.lower()]) == 1
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        driver.kill()
        head.wait()
