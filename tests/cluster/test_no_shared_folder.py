"""The pipeline on three nodes that share no folder, with S3 between them, against this machine.

Minutes long: `python -m pytest -m cluster tests/cluster`, as root.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.projects import ADDRESS, ROOT, digests, losses, project

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
S3 = {
    "AWS_ENDPOINT_URL": "http://10.77.0.1:5555",
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_DEFAULT_REGION": "us-east-1",
    "MLFLOW_TRACKING_URI": "http://10.77.0.1:5001",
}
COPY = """
import sys, fsspec
files = fsspec.filesystem("s3")
for name in sys.argv[3:]:
    if files.exists(f"{sys.argv[1]}/{name}"):
        files.get(f"{sys.argv[1]}/{name}", f"{sys.argv[2]}/{name}", recursive=True)
"""


@pytest.fixture
def servers(
    make_nodes: Callable[[int], Any], tmp_path: Path, request: pytest.FixtureRequest
) -> Any:
    """Three nodes, the head's with S3 and MLflow; the others see nothing of this test's folder.

    The parameter is the options of `benchmarks.s3`.
    """
    pytest.importorskip("moto.server")
    nodes = make_nodes(3)
    nodes.start(1, cpus=0)
    for k in (2, 3):
        nodes.start(k, cpus=1, hide=[tmp_path])
    s3 = [sys.executable, "-m", "benchmarks.s3", "10.77.0.1", "5555", *request.param]
    store = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store]
    mlflow += ["--host", "10.77.0.1", "--port", "5001", "--workers", "1"]
    mlflow += ["--allowed-hosts", "*", "--artifacts-destination", str(tmp_path / "artifacts")]
    with (tmp_path / "servers.log").open("w") as log:
        for command in (s3, mlflow):
            there = nodes.on(1, *command, PYTHONPATH=str(ROOT))
            subprocess.Popen(there, env=nodes.environment, stdout=log, stderr=log)
    ask = "import urllib.request, sys; [urllib.request.urlopen(u, timeout=5) for u in sys.argv[1:]]"
    urls = [S3["AWS_ENDPOINT_URL"] + "/moto-api/", S3["MLFLOW_TRACKING_URI"] + "/health"]
    for _ in range(120):
        if nodes.run(1, sys.executable, "-c", ask, *urls).returncode == 0:
            break
        time.sleep(2)
    else:
        raise AssertionError((tmp_path / "servers.log").read_text()[-3000:])
    bucket = "import fsspec; fsspec.filesystem('s3').mkdir('bucket')"
    assert nodes.run(1, sys.executable, "-c", bucket, **S3).returncode == 0
    return nodes


@pytest.mark.parametrize(
    ("servers", "stages"),
    [([], []), (["--milliseconds", "30"], ["features"])],
    ids=["near", "far"],
    indirect=["servers"],
)
def test_the_pipeline_by_s3_alone_gives_what_this_machine_gives(
    servers: Any, stages: list[str], tmp_path: Path
) -> None:
    """The whole graph; and the stages up to the store, where each request takes 30 ms."""
    nodes = servers
    here = project(tmp_path / "here", at="s3://bucket/text")
    local = project(tmp_path / "local")
    put = "import fsspec, sys; fs = fsspec.filesystem('s3'); "
    put += "[fs.put(f, 's3://bucket/text/') for f in sys.argv[1:]]"
    texts = [str(tmp_path / name) for name in ("general.txt", "task.txt")]
    done = nodes.run(1, sys.executable, "-c", put, *texts, **S3)
    assert done.returncode == 0, done.stderr[-2000:]
    own = nodes.environment | {"PYTHONPATH": str(ROOT), "TMPDIR": "/tmp"}
    own |= {"ELMO_CPUS": "1", "ELMO_ACTORS": "1"}  # this process, without Ray
    for folder in (here, local):
        subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=folder, env=own, check=True)
    embedded = subprocess.run(
        ["dvc", "repro", "features"], cwd=local, env=own, capture_output=True, text=True
    )
    assert embedded.returncode == 0, embedded.stdout[-3000:] + embedded.stderr[-3000:]
    expected = digests(local)
    assert len(expected) > 6

    def submit(name: str, workers: int, *stages: str) -> tuple[Path, Path]:
        """Run stages at a URL of their own; return the folder of a copy of what is there, and in it
        that of the job's project."""
        url = f"s3://bucket/{name}"
        (here / "cluster.yaml").write_text(f"storage: {url}\nworkers: {workers}\n")
        command = [sys.executable, "-m", "pipeline", "submit", *stages, "--address", ADDRESS]
        done = nodes.run(1, *command, cwd=here, limit=3000, **S3, ELMO_CPUS="1")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        assert "features: " in done.stdout
        assert url in done.stderr
        copy = tmp_path / name
        copy.mkdir()
        what = ["data", "models", "jobs"]
        done = nodes.run(1, sys.executable, "-c", COPY, f"bucket/{name}", str(copy), *what, **S3)
        assert done.returncode == 0, done.stderr[-2000:]
        (job,) = (copy / "jobs").iterdir()
        return copy, job

    one, job = submit("one", 1, *stages)
    assert digests(one) == expected
    kept = json.loads((job / "metrics" / "pretrain.json").read_text())
    assert kept == json.loads((local / "metrics" / "pretrain.json").read_text())
    repro = [sys.executable, "-m", "dvc", "repro", *stages]
    done = nodes.run(1, *repro, cwd=here, limit=600, **S3)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    ran = set(re.findall("Running stage '([^']*)'", done.stdout))
    looking = {"corpus"} if stages else {"corpus", "register"}  # for new text, for the registry
    assert ran == looking
    again = [sys.executable, "-m", "pipeline", "submit", *stages, "--address", ADDRESS]
    done = nodes.run(1, *again, cwd=here, limit=600, **S3)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert set(re.findall("Running stage '([^']*)'", done.stdout)) == looking
    if not stages:  # another storage holds nothing of what this project names, so it is refused
        here.rename(tmp_path / "first")
        project(here, at="s3://bucket/text")
        subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=here, env=own, check=True)
        _, job = submit("two", 2, "features")
        assert losses(job) == pytest.approx(losses(local), rel=1e-4)


@pytest.mark.parametrize("servers", [["--without-conditions"]], indirect=True)
def test_a_store_that_gives_a_name_twice_is_refused_before_the_first_stage(
    servers: Any, tmp_path: Path
) -> None:
    here = project(tmp_path / "here", at="s3://bucket/text")
    submitted = ["submit", "--address", ADDRESS, "--folder", "s3://bucket/one"]
    done = servers.run(1, sys.executable, "-m", "pipeline", *submitted, cwd=here, **S3)
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-2000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert re.match("error: s3://bucket/one/jobs/elmo-job-[0-9a-f]+: .* If-None-Match", line)
    assert "Traceback" not in done.stdout and "corpus: " not in done.stdout
    left = "import fsspec; print(fsspec.filesystem('s3').find('bucket'))"
    assert servers.run(1, sys.executable, "-c", left, **S3).stdout.strip() == "[]"
