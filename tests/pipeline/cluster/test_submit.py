"""Jobs on a real Ray head of this machine: sent, followed, stopped, and what travels with them."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.cluster import submit
from tests.cluster.projects import project
from tests.hostile.test_registries import answering
from tests.pipeline.command_line import ROOT, elmo
from tests.ports import free_port
from tests.programs import python

TOKEN = "a-token-of-this-test-that-is-long-enough-0123456789"
SECRET = "secret-key-of-this-test"


def test_only_what_is_allowed_or_asked_for_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS", "AZURE", "MLFLOW", "ELMO", "FSSPEC", "GOOGLE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("GITHUB_TOKEN", "stays")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert submit.choose_variables([]) == {"AWS_SECRET_ACCESS_KEY": SECRET}
    found = submit.choose_variables(["OMP_NUM_THREADS", "X=a=b"])
    assert found == {"AWS_SECRET_ACCESS_KEY": SECRET, "OMP_NUM_THREADS": "3", "X": "a=b"}
    with pytest.raises(ElmoError, match="--env NO_SUCH: not set"):
        submit.choose_variables(["NO_SUCH"])


def test_the_package_is_the_code_and_the_projects_files(tmp_path: Path) -> None:
    os.chdir(ROOT)
    submit.pack(tmp_path / "q", {"A": "b"}, params=ROOT / "params.yaml")
    assert (tmp_path / "q" / "environment.json").stat().st_mode & 0o777 == 0o600
    sent = {str(p.relative_to(tmp_path / "q")) for p in (tmp_path / "q").rglob("*")}
    assert {
        "elmo_job.py",
        "environment.json",
        "elmo/nn/bilm.py",
        "elmo_pipeline/commands/cli.py",
        "elmo_pipeline/project/dvc.yaml",
        "dvc.yaml",
        "params.yaml",
    } <= sent
    assert not [name for name in sent if "__pycache__" in name or name.split("/")[0] == "data"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["pretrain"], "--folder"),
        (["pretrain", "--folder", "data"], "absolute path"),
        (["pretrain", "--command", "true"], "--command"),
        (["--command", "echo 'a"], "--command echo 'a: no closing quotation\n"),
        (["pretrain", "--folder", "/x", "--address", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["pretrain", "--folder", "/x"], "--address"),
        (["pretrain", "--folder", "/x", "--address", "head:8265"], "--address http://HEAD:8265"),
    ],
)
def test_a_wrong_submission_is_one_line(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("RAY")]:
        monkeypatch.delenv(name)
    code, _, error = elmo("submit", *options)
    assert code == 1 and error.startswith("error: ") and said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"<html></html>"])
def test_what_is_no_jobs_api_is_said(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with answering(200, answer)() as port:
        address = f"http://127.0.0.1:{port}"
        with pytest.raises(ElmoError, match=f"{address}: the server there is not a Ray Jobs API"):
            submit.connect(address)


def test_a_job_waits_for_what_saves_after_its_parent_died(tmp_path: Path) -> None:
    """A stop signals all processes of a job at once; the shell between dies, the stage saves."""
    stage = tmp_path / "stage.sh"
    stage.write_text(
        f"trap 'sleep 0.5; touch {tmp_path}/saved; exit 0' INT\n"
        f"touch {tmp_path}/ready; while :; do sleep 0.05; done\n"
    )
    parent = f"import subprocess, time; subprocess.Popen(['bash', '{stage}']); time.sleep(100)"
    run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    run += "from pipeline.cluster import job; import os; "
    run += f"sys.exit(job.run([sys.executable, '-c', {parent!r}], '.', dict(os.environ)))"
    whole = subprocess.Popen([sys.executable, "-c", run], start_new_session=True)
    while not (tmp_path / "ready").exists():
        time.sleep(0.05)
    os.killpg(whole.pid, signal.SIGINT)
    assert whole.wait(60) == 128 + signal.SIGINT
    assert (tmp_path / "saved").exists()


class Cluster:
    """A Ray head with its Jobs API, and a door in front of it that can be shut."""

    def __init__(self, home: Path) -> None:
        self.port = free_port()
        self.door = Door(self.port)
        self.home = home
        self.session = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "AWS", "MLFLOW"))}
        bin = Path(sys.executable).parent
        self.environment = kept | {
            "PATH": f"{bin}{os.pathsep}{kept['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
        }
        options = [
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            f"--port={free_port()}",
            "--num-cpus=2",
            f"--ray-client-server-port={free_port()}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={self.port}",
            f"--dashboard-agent-listen-port={free_port()}",
            "--object-store-memory=100000000",
            "--disable-usage-stats",
            f"--temp-dir={self.session}",
        ]
        clean = {k: v for k, v in self.environment.items() if k != "PYTHONPATH"}
        self.head = subprocess.Popen(
            [str(bin / "ray"), "start", *options],
            env=clean,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=home,
        )
        for _ in range(240):
            if self.ray("list").returncode == 0:
                return
            time.sleep(0.5)
        raise AssertionError("the head did not start")

    def call(
        self, *command: str, cwd: Path = ROOT, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run an elmo command that talks to the cluster through the door."""
        return subprocess.run(
            [sys.executable, "-m", "pipeline", *command, "--address", self.door.address],
            env=self.environment | variables,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def ray(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run `ray job COMMAND` through the door."""
        ray = [str(Path(sys.executable).parent / "ray"), "job", *command]
        return subprocess.run(
            [*ray, "--address", self.door.address],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=500,
        )

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        """Run an elmo command in the background."""
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline", *command, "--address", self.door.address],
            env=self.environment | variables,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> None:
        """Stop the head and everything of its session."""
        os.killpg(self.head.pid, signal.SIGTERM)
        try:
            self.head.wait(60)
        finally:
            self.door.close()
            shutil.rmtree(self.session, ignore_errors=True)


class Door:
    """A proxy: shut, it ends every connection and takes none."""

    def __init__(self, port: int) -> None:
        self.port, self.own = port, free_port()
        self.address = f"http://127.0.0.1:{self.own}"
        self.open()

    def open(self) -> None:
        """Take connections."""
        self.connections: list[socket.socket] = []
        self.listening = socket.create_server(("127.0.0.1", self.own))
        threading.Thread(target=self._accept, args=(self.listening,), daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        for one in [self.listening, *self.connections]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            self.connections += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(a, b), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


def job_of(text: str) -> str:
    found = re.search(r"submitted (\S+) to", text)
    assert found, text
    return found[1]


@pytest.mark.ray
def test_the_exit_code_the_log_and_the_variables_are_the_jobs(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = "import ray, os, sys, elmo_pipeline; ray.init(log_to_driver=False); "
    code += (
        "there = ray.get(ray.remote(lambda: os.environ['AWS_SECRET_ACCESS_KEY'][:6]).remote()); "
    )
    code += "print('worker has', there, len(os.environ['MLFLOW_TRACKING_PASSWORD'])); "
    code += "print('code', os.path.dirname(elmo_pipeline.__file__)); sys.exit(7)"
    script = tmp_path / "script.py"
    script.write_text(code)
    done = cluster.call(
        "submit",
        "--command",
        f"python {script}",
        AWS_SECRET_ACCESS_KEY=SECRET,
        MLFLOW_TRACKING_PASSWORD=SECRET,
    )
    assert done.returncode == 7, done.stderr
    assert f"worker has {SECRET[:6]} {len(SECRET)}" in done.stdout
    assert "working_dir_files" in done.stdout.split("code ")[1]
    job = job_of(done.stderr)
    listed = cluster.ray("list").stdout
    assert job in listed and f"python {script}" in listed
    seen = done.stdout + done.stderr + listed + details(cluster, job)
    for log in (cluster.session / "session_latest" / "logs").rglob("*"):
        seen += log.read_text(errors="replace") if log.is_file() else ""
    assert SECRET not in seen
    assert list(cluster.session.rglob("elmo_job.py"))  # Ray keeps the package of an ended job
    assert not list(cluster.session.rglob("environment.json"))


def details(cluster: Cluster, job: str) -> str:
    import urllib.request

    url = f"http://127.0.0.1:{cluster.port}/api/jobs/{job}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    assert json.loads(text)["submission_id"] == job
    return text


@pytest.mark.ray
def test_a_wrong_token_is_refused_in_one_line(cluster: Cluster) -> None:
    done = cluster.call("submit", "--command", "true", RAY_AUTH_TOKEN="another-" + TOKEN)
    assert done.returncode == 1 and "refuses this token" in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.ray
def test_a_lost_connection_names_the_commands_by_which_the_job_is_followed_and_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The job goes on; a stop waits longer than the 3 s after which Ray kills otherwise."""
    script = tmp_path / "saves.py"
    script.write_text(
        "import time, pathlib\nprint('ready', flush=True)\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    time.sleep(5)\n"
        f"    pathlib.Path({str(tmp_path / 'saved')!r}).touch()\n    print('saved', flush=True)\n"
    )
    running = cluster.start("submit", "--command", f"python {script}")
    for line in running.stdout:  # type: ignore[union-attr]
        if line == "ready\n":
            break
    cluster.door.close()
    _, said = running.communicate(timeout=200)
    cluster.door.open()
    assert running.returncode == 1
    job = job_of(said)
    logs, stop, listing = re.findall("^  (RAY_AUTH_MODE=token ray job .*)$", said, re.MULTILINE)
    assert said.splitlines()[-1].startswith("error: ") and said.endswith(f"{logs}\n")
    assert job in shell(cluster, listing).stdout
    assert shell(cluster, stop).returncode == 0
    followed = shell(cluster, logs)
    assert "ready\nsaved\n" in followed.stdout + followed.stderr
    assert (tmp_path / "saved").exists() and "STOPPED" in details(cluster, job)


def shell(cluster: Cluster, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line that was printed, without the token's mode, which it names itself."""
    own = {name: value for name, value in cluster.environment.items() if name != "RAY_AUTH_MODE"}
    return subprocess.run(line, shell=True, env=own, capture_output=True, text=True, timeout=200)


@pytest.mark.ray
def test_the_page_sends_work_follows_it_and_stops_it(cluster: Cluster, tmp_path: Path) -> None:
    """Its words as they stand, but for the names of the machine, the folder and the job. DVC stays
    in charge: a second job does nothing, and wrong settings are an error of its own."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = page.split("## Submit, follow and stop jobs")[1].split("\n## ")[0]
    block = section.split("```")[1].strip().splitlines()
    rows = re.findall(r"^\| `(ray job (?!submit)[^`]*)` \|", section, re.MULTILINE)
    assert [line.split()[0] for line in block] == ["pip", "elmo"] and len(rows) == 3
    here = project(tmp_path / "here")
    (tmp_path / "shared").mkdir()
    own = cluster.environment | {"ELMO_WORKERS": "1", "ELMO_CPUS": "1"}
    named = {"http://HEAD:8265": cluster.door.address, "/shared/elmo": str(tmp_path / "shared")}
    named |= {"ELMO_WORKERS=2": "ELMO_WORKERS=1"}

    def follow(line: str) -> subprocess.CompletedProcess[str]:
        for theirs, ours in named.items():
            assert theirs in page
            line = line.replace(theirs, ours)
        return subprocess.run(line, shell=True, cwd=here, env=own, capture_output=True, text=True)

    done = follow(block[1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    shared = tmp_path / "shared"
    assert (shared / "models" / "pretrain" / "config.json").exists()
    assert "pretrain:" in (shared / "dvc.lock").read_text()
    assert not (shared / "elmo_pipeline").exists()
    job = job_of(done.stderr)
    own |= {"RAY_API_SERVER_ADDRESS": cluster.door.address}
    for line, said in zip(rows, (job, "pretrain: ", job), strict=True):
        shown = follow(line.replace("ID", job))
        assert said in shown.stdout + shown.stderr, line
    submitted = ["submit", "pretrain", "--folder", str(shared), "--env", "OMP_NUM_THREADS=1"]
    one = {"ELMO_WORKERS": "1", "ELMO_CPUS": "1"}
    again = cluster.call(*submitted, cwd=here, **one)
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr
    for stage in ("tokenize@general", "vocab", "pretrain"):
        assert f"Stage '{stage}' didn't change, skipping\n" in again.stdout
    params = (here / "params.yaml").read_text()
    (here / "params.yaml").write_text(params.replace("heldout:", "held_out:"))
    wrong = cluster.call(*submitted, cwd=here, **one)
    assert wrong.returncode != 0 and "error: params.yaml" in wrong.stdout


@pytest.mark.ray
def test_the_first_job_of_a_project_that_runs_has_its_work_in_progress(cluster: Cluster) -> None:
    """A second one keeps its own; once the first has ended, the next one resumes its work."""
    code = """
import os, sys, time
from ray.job_submission import JobSubmissionClient
from pipeline.cluster.job import PROJECT_VARIABLE, _choose_work_id
client = JobSubmissionClient(sys.argv[1])
for job in ("one", "two"):
    client.submit_job(entrypoint="sleep 300", submission_id=job, metadata={PROJECT_VARIABLE: "p"})
client.submit_job(entrypoint="sleep 300", submission_id="other", metadata={PROJECT_VARIABLE: "q"})
print(_choose_work_id("one", "p"), _choose_work_id("other", "q"))
print(_choose_work_id("two", "p").split()[-1])
client.stop_job("one")
while not client.get_job_status("one").is_terminal():
    time.sleep(0.5)
print(_choose_work_id("two", "p"))
for job in ("two", "other"):
    client.stop_job(job)
"""
    address = f"http://127.0.0.1:{cluster.port}"
    own = cluster.environment | {"RAY_ADDRESS": address}
    printed = python(code, address, env=own, timeout=300)
    lines = [line for line in printed.splitlines() if not line.startswith("  ")]
    assert lines == ["p q", "p-two", "p"]
