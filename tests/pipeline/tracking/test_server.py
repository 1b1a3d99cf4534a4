"""MLflow's server as a team has it: PostgreSQL and S3 behind, several that write at once."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import pytest

from elmo.io.location import Location
from pipeline import tracking
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
STEPS = 250
WRITER = f"""
import sys
from pathlib import Path
from pipeline import tracking
run = tracking.Run(sys.argv[1])
for step in range({STEPS}):
    run.log_metrics({{f"loss-{{sys.argv[2]}}": float(step)}}, step=step)
run.log_artifact(Path(sys.argv[3]))
sys.exit(run.close(300))
"""


@dataclass(frozen=True)
class Params:
    """The params of a stage."""

    rows: int = 4


def program(name: str) -> str:
    """A program of PostgreSQL; Debian keeps them out of PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = installed[-1] if installed else shutil.which(name)
    if path is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return str(path)


@contextmanager
def running(command: list[str], log: Path, **options: Any) -> Iterator[None]:
    """A program that runs meanwhile."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, **options)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of a database of its own; PostgreSQL refuses to run as root."""
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install '.[server]')")
    initdb, server = program("initdb"), program("postgres")
    user: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        if os.geteuid() == 0:
            import pwd

            try:
                entry = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
            os.chown(name, entry.pw_uid, entry.pw_gid)
            user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        data, port = Path(name, "data"), free_port()
        make = [initdb, "-D", str(data), "-U", "mlflow", "--auth=trust", "--no-sync"]
        subprocess.run(make, check=True, capture_output=True, cwd=name, **user)
        serve = [server, "-D", str(data), "-k", name, "-h", "127.0.0.1", "-p", str(port)]
        with tempfile.TemporaryDirectory() as logs:
            with running(serve, Path(logs, "log"), cwd=name, **user):
                await_port(port)
                yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"


def await_port(port: int) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)


@pytest.fixture
def server(postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """MLflow's server on PostgreSQL, with artifacts on S3; `MLFLOW_TRACKING_URI` names it."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    s3, port = free_port(), free_port()
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    keys |= {"AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (keys | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")  # of a busy machine
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{s3}")
    for name in ("DVC_STAGE", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    objects = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=s3)
    with ExitStack() as stack:
        objects.start()
        stack.callback(objects.stop)
        boto3.client("s3").create_bucket(Bucket="mlflow")
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "2", "--backend-store-uri", postgres]
        command += ["--artifacts-destination", "s3://mlflow"]
        stack.enter_context(running(command, tmp_path / "server.log"))
        uri = f"http://127.0.0.1:{port}"
        while True:
            with suppress(OSError), urllib.request.urlopen(f"{uri}/health", timeout=10):
                break
            time.sleep(0.2)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield uri


@pytest.mark.slow
def test_four_writers_on_postgresql_and_s3_lose_nothing(server: str, tmp_path: Path) -> None:
    work = tmp_path / "runs" / "pretrain" / "abc"
    work.mkdir(parents=True)
    with tracking.run(
        "pretrain", Params(), inputs={"corpus": "a" * 64}, folder=Location(work)
    ) as log:
        writers = []
        for k in range(4):
            (tmp_path / f"curve-{k}.tsv").write_text(f"{k}\n" * 1000)
            own = [log.run_id, str(k), str(tmp_path / f"curve-{k}.tsv")]
            writers.append(subprocess.Popen([sys.executable, "-c", WRITER, *own], cwd=ROOT))
        assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    client = mlflow.MlflowClient(server)
    for k in range(4):
        found = client.get_metric_history(log.run_id, f"loss-{k}")
        assert sorted((m.step, m.value) for m in found) == [(s, float(s)) for s in range(STEPS)]
        path = client.download_artifacts(log.run_id, f"curve-{k}.tsv", str(tmp_path / "down"))
        assert Path(path).read_text() == f"{k}\n" * 1000
    assert client.get_run(log.run_id).info.status == "FINISHED"
    import boto3

    stored = boto3.client("s3").list_objects_v2(Bucket="mlflow")["Contents"]
    assert {f"curve-{k}.tsv" for k in range(4)} <= {o["Key"].rpartition("/")[2] for o in stored}
