"""The image of deploy/Dockerfile: its head, worker and MLflow server run a submitted project.

As root, with buildah, which needs no daemon, and the image of this checkout:
`buildah bud -f deploy/Dockerfile -t elmo-pipeline:cpu .`, then `python -m pytest -m cluster`.
PostgreSQL and the S3 server of deploy/compose.yaml are tried by the weekly workflow.
"""

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.conftest import HEAD, Nodes
from tests.cluster.projects import ADDRESS, project

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
IMAGE = "localhost/elmo-pipeline:cpu"
MLFLOW = f"http://{HEAD}:5000"


class ImageNodes(Nodes):
    """Nodes whose programs are those of the image, as the user that it names; `/shared` is
    `shared`."""

    def __init__(self, count: int, shared: Path) -> None:
        super().__init__(count)
        self.head_options = []
        self.shared = shared
        self.variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "MLFLOW_TRACKING_URI": MLFLOW,
            "ELMO_COMPILE": "0",
        }
        for k in range(1, count + 1):
            subprocess.run(["buildah", "from", "--name", self._name(k), IMAGE], check=True)

    def wrap(self, k: int, command: Sequence[str]) -> list[str]:
        run = ["buildah", "run", "--isolation", "chroot", "--user", "1000:100"]
        run += ["--volume", f"{self.shared}:/shared:rw"]
        for name, value in self.variables.items():
            run += ["--env", f"{name}={value}"]
        return [*run, self._name(k), "--", *command]

    def call(self, *command: str, limit: float = 1500) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end."""
        return subprocess.run(self.on(1, *command), text=True, capture_output=True, timeout=limit)

    def down(self) -> None:
        super().down()
        for k in range(1, self.count + 1):
            subprocess.run(["buildah", "rm", self._name(k)], check=False)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ImageNodes]:
    if os.geteuid() != 0:
        pytest.skip("namespaces need root")
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    if subprocess.run(
        ["buildah", "inspect", "--type", "image", IMAGE], capture_output=True
    ).returncode:
        pytest.skip("there is no image elmo-pipeline:cpu; build it as this file says")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    made = ImageNodes(2, shared)
    yield made
    made.down()


def await_success(nodes: ImageNodes, *command: str) -> None:
    """Run the command on the head again and again until it exits with 0."""
    for _ in range(90):
        tried = nodes.call(*command)
        if tried.returncode == 0:
            return
        time.sleep(2)
    raise AssertionError(tried.stdout + tried.stderr + (nodes.home / "1.log").read_text()[-2000:])


def test_a_head_a_worker_and_mlflow_of_the_image_run_a_project(
    nodes: ImageNodes, tmp_path: Path
) -> None:
    here = project(nodes.shared / "here", at="/shared")
    here.chmod(0o777)
    nodes.start(1, cpus=0)
    nodes.start(2, cpus=2)
    server = ["mlflow", "server", "--host", HEAD, "--port", "5000", "--workers", "1"]
    server += ["--allowed-hosts", "*", "--backend-store-uri", "sqlite:////shared/mlflow.db"]
    with (tmp_path / "mlflow.log").open("w") as log:
        subprocess.Popen(
            nodes.on(1, *server, "--artifacts-destination", "/shared/artifacts"),
            stdout=log,
            stderr=log,
        )
    get = "import urllib.request as r, sys; r.urlopen(sys.argv[1], timeout=5)"
    await_success(nodes, "python", "-c", get, f"{MLFLOW}/health")

    submit = f"cd /shared/here && elmo submit --address {ADDRESS} --folder /shared/project"
    (nodes.shared / "project").mkdir()
    (nodes.shared / "project").chmod(0o777)
    done = nodes.call("env", "ELMO_WORKERS=1", "ELMO_CPUS=1", "sh", "-c", submit)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    store = json.loads((nodes.shared / "project" / "numbers" / "features.json").read_text())
    assert store["tokens"] > 0
    versions = "import mlflow; print(len(mlflow.search_model_versions()))"
    assert nodes.call("python", "-c", versions).stdout.split()[-1] == "1"
    refused = nodes.call(
        "env", "RAY_AUTH_TOKEN=" + "0" * 32, "ray", "job", "list", "--address", ADDRESS
    )
    assert refused.returncode != 0
