"""Ray's head gone: lines while it is waited for, then one that says what to do."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.cluster.heads import Head

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = os.environ | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
CODE = """
import time
from pipeline.cluster import head, workers
head.TOLD = 2.0
with workers.session():
    print("connected", flush=True)
    time.sleep(120)
"""


@pytest.fixture
def head() -> Iterator[Head]:
    with Head(ENVIRONMENT, cpus=1) as started:
        yield started


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_head_that_is_gone_is_told_and_ends_the_process(
    head: Head, tmp_path: Path, comes_back: bool
) -> None:
    own = ENVIRONMENT | {"RAY_ADDRESS": head.address}
    own |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "600" if comes_back else "14"}
    with (tmp_path / "said").open("w") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", CODE], env=own, stdout=subprocess.PIPE, stderr=said
        )
    try:
        assert driver.stdout is not None and driver.stdout.readline() == b"connected\n"
        head.kill()
        time.sleep(3)
        if comes_back:
            assert head.start()
        assert driver.wait(100) == 1
    finally:
        driver.kill()
    lines = (tmp_path / "said").read_text().splitlines()
    told = [line for line in lines if "does not answer, " in line]
    assert told and told[0].startswith("  Ray's head at ")
    assert [line for line in lines if line.startswith("error: Ray's head at ")] == lines[-1:]
    assert lines[-1].endswith("run the same command again")
    assert ("was restarted" in lines[-1]) == comes_back


@pytest.mark.ray
def test_messages_of_raylets_are_not_printed_among_results() -> None:
    """One that a raylet could publish reaches the driver, which prints nothing of it."""
    code = """
import time
from pipeline.cluster import workers
with workers.session() as ray:
    private = ray._private
    own = private.worker.global_worker
    if {printed}:
        private.worker._worker_logs_enabled = True
    private.utils.publish_error_to_driver("kind", "a node died", gcs_client=own.gcs_client)
    time.sleep(5)
"""
    for printed in (True, False):
        done = subprocess.run(
            [sys.executable, "-c", code.format(printed=printed)],
            env={k: v for k, v in ENVIRONMENT.items() if k != "RAY_ADDRESS"},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert ("a node died" in done.stdout) == printed
