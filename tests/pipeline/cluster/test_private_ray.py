"""The private names of Ray that the pipeline uses, each with its check, and who reaches a Ray that
it starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT)}
LISTED = {"ray._private.worker._worker_logs_enabled"}  # the test of raylets' messages


def test_each_private_name_is_listed_with_its_check() -> None:
    used = set()
    for path in (ROOT / "pipeline").rglob("*.py"):
        used |= set(re.findall(r"ray\._[\w.]+", path.read_text(encoding="utf-8")))
    assert used - {"ray._private.runtime_env.packaging"} == LISTED  # that is a logger's name


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )


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
    for _ in range(5):  # the driver subscribes in a thread
        private.utils.publish_error_to_driver("kind", "a node died", gcs_client=own.gcs_client)
        time.sleep(2)
"""
    for printed in (True, False):
        done = run(code.format(printed=printed))
        assert done.returncode == 0, done.stderr
        assert ("a node died" in done.stdout) == printed


@pytest.mark.ray
def test_a_process_without_the_token_is_refused_by_a_ray_that_a_stage_started(
    tmp_path: Path,
) -> None:
    """A stranger's process calls a function with the address alone, then with the token too."""
    session = """
import os, subprocess, sys
from pipeline.cluster import workers
stranger = '''
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False)
print("ran", ray.get(ray.remote(lambda: 6 * 7).remote()))
'''
with workers.session() as ray:
    address = ray.get_runtime_context().gcs_address
    token = os.environ["RAY_AUTH_TOKEN"]
    known = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    tries = [{}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}]
    for own in tries:
        own["RAY_gcs_rpc_server_connect_timeout_s"] = "2"
        own["HOME"] = sys.argv[1]
        done = subprocess.run([sys.executable, "-c", stranger, address], env=known | own,
                              capture_output=True, text=True)
        print(done.stdout.strip().splitlines()[-1:])
print(os.listdir(sys.argv[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", session, str(tmp_path)],
        env=ENVIRONMENT | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]", "['ran 42']", "[]"]  # nor is a token left
