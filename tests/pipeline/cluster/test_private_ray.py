"""The pipeline uses no private name of Ray, and nobody without the token reaches a Ray that it
starts."""

import os
import re
from pathlib import Path

import pytest

from tests.programs import ROOT, python

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
ENVIRONMENT |= {"PYTHONPATH": str(ROOT)}


def test_no_private_name_is_used() -> None:
    for path in (ROOT / "pipeline").rglob("*.py"):
        assert not re.findall(r"ray\._[\w.]+", path.read_text(encoding="utf-8")), path


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
    printed = python(session, tmp_path, env=ENVIRONMENT | {"HOME": str(tmp_path)}, timeout=300)
    assert printed.splitlines() == ["[]", "[]", "['ran 42']", "[]"]  # nor is a token left
