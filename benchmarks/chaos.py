"""Run the pipeline on several Ray nodes of this machine and kill its parts, one at a time.

    python -m benchmarks.chaos [--minutes 15] [--every 15] [--each 4] [--nodes 3] [--seed 1]
                               [--text-kb 1500] [--s3]

Runs `dvc repro features` repeatedly (each run is a pass), each time in an empty project, on a Ray
cluster with an MLflow server. With `--s3`, a pass runs the whole graph and keeps data and models
only on moto's S3 server. While the cluster works, one part is killed (SIGKILL) about every
`--every` seconds. It is drawn at random, with `--seed`, among: an actor that tokenizes, counts or
embeds; a training worker; another Ray task; a node; the raylet of a node; Ray's head; the tracking
server; the stage itself. At most `--each` parts are killed per stage, so that each stage can
finish. Killed parts of the cluster restart after a few seconds, and a command that ended is run
again. At the end of each pass, its files and losses are compared with those of an undisturbed run.
Prints each kill, then JSON: kills by kind, repeated training steps, and the error of each command.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import psutil
import yaml

from benchmarks.machine import print_figures
from elmo.io.location import Location
from elmo.io.records import read_record, sha256
from pipeline.cluster.job import POINTER_FILE
from pipeline.cluster.storage import Pointer, files_folder, read_output

ROOT = Path(__file__).resolve().parents[1]
RESTART_SECONDS = 5.0  # from the end of a part or command to its restart
SETTLING_SECONDS = 25.0  # a part that started more recently is not killed
POLL_SECONDS = 0.2
KIND_BY_TITLE = {"ray::Actor.": "actor", "ray::RayTrainWorker": "trainer", "ray::": "task"}
IDLE_TITLES = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::TrainController")
# The relative probability that a part of each kind is killed.
KILL_WEIGHTS = {"task": 9, "actor": 9, "trainer": 9, "node": 3, "raylet": 2, "stage": 2}
KILL_WEIGHTS |= {"head": 1, "server": 1}
BUCKET = "s3://chaos"
RESULT_NAME = re.compile(r"weights\.safetensors|.*\.arrow|.*-[0-9]{5}-.*")
WORDS = "a cat sat on the mat while an old dog slept near my open door and rain fell".split()


def accepts_connections(address: str) -> bool:
    """Tell whether something accepts TCP connections at `address`, which is HOST:PORT."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


@dataclass
class Trial:
    """The record of all passes: the stage and kind of each kill, the number of repeated training
    steps, and the error line of each command that failed."""

    kills: list[tuple[str, str]] = field(default_factory=list)
    passes: int = 0
    unequal_passes: int = 0
    repeated_steps: int = 0
    error_lines: list[str] = field(default_factory=list)
    start_time: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Return the seconds since the start of the trial."""
        return time.monotonic() - self.start_time


def main() -> None:
    """Run passes until `--minutes` are over, then print the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=15.0, help="mean seconds between two kills")
    parser.add_argument("--each", type=int, default=4, help="maximum kills per stage in a pass")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-kb", type=int, default=1500)
    parser.add_argument("--s3", action="store_true", help="keep data and models only on S3")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the cluster is stopped too
    with tempfile.TemporaryDirectory(prefix="chaos") as folder_name:
        home = Path(folder_name)
        _write_text(home / "text.txt", options.text_kb)
        project = _make_project(home, "calm")
        start_time = time.monotonic()
        targets = () if options.s3 else ("features",)
        command = Command(project, {"ELMO_WORKERS": "1", "ELMO_CPUS": "1"}, targets)
        if code := command.process.wait():
            log = command.log.read_text()[-2000:]
            sys.exit(f"error: the undisturbed run failed ({code}): {log}")
        expected = count_results(project)
        seconds = time.monotonic() - start_time
        print(f"undisturbed: {len(expected)} results in {seconds:.0f} s", flush=True)
        with Cluster(home, options.nodes, s3=options.s3) as cluster:
            trial = run_passes(home, cluster, expected, options)
    print_figures(
        {
            "minutes": options.minutes,
            "seed": options.seed,
            "passes": trial.passes,
            "passes_with_other_results": trial.unequal_passes,
            "kills": Counter(kind for _, kind in trial.kills),
            "steps_again": trial.repeated_steps,
            "commands_that_ended": trial.error_lines,
        }
    )
    sys.exit(1 if trial.unequal_passes else 0)


def _write_text(path: Path, kilobytes: int) -> None:
    rng = random.Random(1)
    with path.open("w") as file:
        while file.tell() < 1000 * kilobytes:
            file.write(" ".join(rng.choices(WORDS, k=rng.randint(4, 30))) + "\n")
            file.write("\n" * (rng.random() < 0.1))


def _make_project(home: Path, name: str) -> Path:
    """Make a project with this repository's `dvc.yaml`, the text and a tiny network."""
    folder = home / name
    folder.mkdir()
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["corpus"] |= {"general": [str(home / "text.txt")], "domain": [str(home / "text.txt")]}
    params["tokenize"] |= {"sentences": "line", "heldout": 0.1, "shard_bytes": 1 << 17}
    params["pretrain"]["network"] |= {"char_dim": 8, "filters": [[1, 16], [2, 16], [3, 32]]}
    params["pretrain"]["network"] |= {"cells": 128, "projection": 32}
    params["pretrain"]["training"] |= {"epochs": 1, "samples": 16, "evaluate_tokens": 2000}
    params["finetune"]["training"] |= {"epochs": 1, "samples": 16, "evaluate_tokens": 2000}
    params["labels"] |= {"package": "click", "train": 40, "dev": 20, "test": 20}
    params["tasks"] = {}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    command = [_program_path("dvc"), "init", "--no-scm", "--quiet"]
    subprocess.run(command, cwd=folder, env=_environment(), check=True)
    return folder


def count_results(project: Path) -> Counter[str]:
    """Count the results of a project: name and SHA-256 of each shard, weights file and part of a
    store, and the line with the perplexity of each recorded step."""
    paths = [
        project / "models" / stage / "weights.safetensors" for stage in ("pretrain", "finetune")
    ]
    paths += (project / "data" / "shards").rglob("*.arrow")
    paths += (project / "data" / "features").rglob("*-?????-*")
    files = {f"{path.relative_to(project)} {sha256(path)}" for path in paths if path.exists()}
    for file in project.rglob(POINTER_FILE):  # a pointer to an output at a URL
        url, name = f"{BUCKET}/{project.name}", read_record(file, Pointer).folder
        record = read_output(url, name)
        assert record is not None, f"{url}/{name}"
        out = files_folder(url, name, record)
        names = [name for name in out.sizes() if RESULT_NAME.fullmatch(name.rpartition("/")[2])]
        files |= {f"{file.parent.relative_to(project)}/{name} {out.sha256(name)}" for name in names}
    curves = (project / "curves").glob("*/train.tsv")
    perplexity_lines = [
        f"{path.parent.name} " + " ".join(line.split("\t")[:3])
        for path in curves
        for line in path.read_text().splitlines()
    ]
    return Counter([*files, *perplexity_lines])


def run_passes(
    home: Path, cluster: "Cluster", expected: Counter[str], options: argparse.Namespace
) -> Trial:
    """Run passes with kills until the time is over; then the last pass finishes undisturbed."""
    rng, trial = random.Random(options.seed), Trial()
    while trial.seconds() < 60 * options.minutes:
        project = _make_project(home, f"pass{trial.passes}")
        _run_pass(project, cluster, trial, rng, options)
        trial.passes += 1
        is_equal = count_results(project) == expected
        trial.unequal_passes += not is_equal
        print(f"  pass {trial.passes}: {'same' if is_equal else 'OTHER'} results", flush=True)
    return trial


def _run_pass(
    project: Path, cluster: "Cluster", trial: Trial, rng: random.Random, options: argparse.Namespace
) -> None:
    """Run all stages in a project, with kills until the time is over."""
    targets = () if options.s3 else ("features",)
    variables = cluster.variables | cluster.storage_variables(project)
    command = Command(project, variables, targets)
    next_kill = trial.seconds() + options.every * rng.uniform(0.5, 1.5)
    kills_by_stage: Counter[str] = Counter()
    url = variables.get("ELMO_STORAGE", "")
    step = _last_step(project, url)
    try:
        while (code := command.process.poll()) != 0:
            time.sleep(5 * POLL_SECONDS if url else POLL_SECONDS)
            cluster.restart_parts()
            previous_step, step = step, _last_step(project, url)
            if 0 < step < previous_step and trial.kills:
                trial.repeated_steps += previous_step - step
            if code is not None:
                trial.error_lines.append(command.error_line())
                print(f"  {trial.seconds():6.0f} s, failed: {trial.error_lines[-1]}", flush=True)
                time.sleep(RESTART_SECONDS)
                command = Command(project, variables, targets)
            elif next_kill < trial.seconds() < 60 * options.minutes:
                stage = command.stage_name()
                may_kill = stage and kills_by_stage[stage] < options.each
                if may_kill and (kind := kill_one_part(rng, cluster, command)):
                    next_kill = trial.seconds() + options.every * rng.uniform(0.5, 1.5)
                    kills_by_stage[stage] += 1
                    trial.kills.append((stage, kind))
                    print(f"  {trial.seconds():6.0f} s, {stage}: {kind}", flush=True)
    finally:
        _kill_tree(command.process.pid)
        command.process.wait()


def kill_one_part(rng: random.Random, cluster: "Cluster", command: "Command") -> str:
    """Kill a random part and return its kind; return "" if no actor or trainer is at work."""
    busy_kinds = {p: kind for node in cluster.nodes for p, kind in _busy_processes(node)}
    present_kinds = {*busy_kinds.values(), *cluster.killable_kinds(), *command.killable_kinds()}
    if not {"actor", "trainer"} & present_kinds:
        return ""
    kinds = [kind for kind in KILL_WEIGHTS if kind in present_kinds]
    kind = rng.choices(kinds, [KILL_WEIGHTS[kind] for kind in kinds])[0]
    if kind == "stage":
        _kill(command.stage_process())
    elif kind in busy_kinds.values():
        _kill(rng.choice([p for p in busy_kinds if busy_kinds[p] == kind]))
    else:
        cluster.kill_part(kind, rng)
    return kind


class Command:
    """A running `dvc repro TARGETS`, and its log."""

    def __init__(self, project: Path, variables: dict[str, str], targets: Sequence[str]) -> None:
        self.log = project / "log"
        with self.log.open("a") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [_program_path("dvc"), "repro", *targets],
                cwd=project,
                env=_environment() | {"ELMO_CHECKPOINT_MINUTES": "0.1"} | variables,
                stdout=log,
                stderr=log,
            )
        self.start_time = time.monotonic()

    def killable_kinds(self) -> set[str]:
        """Return {"stage"} if the command has run long enough for a stage to be at work."""
        return {"stage"} if time.monotonic() - self.start_time > SETTLING_SECONDS else set()

    def stage_process(self) -> psutil.Process:
        """Return the process of the running stage or, between two stages, of DVC."""
        dvc_process = psutil.Process(self.process.pid)
        for child in dvc_process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "elmo_pipeline" in child.cmdline():
                    return child
        return dvc_process

    def stage_name(self) -> str:
        """Return the running stage and its text, such as `tokenize domain`; "" between stages."""
        with contextlib.suppress(psutil.Error, ValueError):
            words = self.stage_process().cmdline()
            stage, *options = words[words.index("elmo_pipeline") + 1 :]
            return " ".join([stage, *(x for x in options[1:2] if x in ("general", "domain"))])
        return ""

    def error_line(self) -> str:
        """Return the line of the log that says why the command failed."""
        lines = self.log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()
        return next((line for line in lines if line.lower().startswith("error")), lines[-1])


class Cluster:
    """A Ray head that runs no tasks, Ray nodes with one core each, and an MLflow server."""

    def __init__(self, home: Path, count: int, *, s3: bool) -> None:
        self.s3, self.log = s3, home / "s3.log"
        self.ray, tracking = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        address, port = f"--address={self.ray}", self.ray.rpartition(":")[2]
        head = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        node = [address, "--num-cpus=1"]
        ray = [_program_path("ray"), "start", "--block", "--disable-usage-stats"]
        ray += ["--object-store-memory=100000000"]
        self.commands = {"head": [*ray, *head]}
        self.commands |= {f"node {k}": [*ray, *node] for k in range(count)}
        server = [_program_path("mlflow"), "server", "--port", tracking.rpartition(":")[2]]
        server += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--workers", "1"]
        self.commands["server"] = [*server, "--artifacts-destination", str(home / "artifacts")]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.due_times = dict.fromkeys(self.commands, 0.0)
        self.start_times: dict[str, float] = {}
        self.variables = {
            "RAY_ADDRESS": self.ray,
            "MLFLOW_TRACKING_URI": f"http://{tracking}",
            "ELMO_WORKERS": "1",
            "ELMO_CPUS": "1",
        }

    def __enter__(self) -> "Cluster":
        if self.s3:
            self._start_s3()
        self.restart_parts()
        return self

    def _start_s3(self) -> None:
        """Start the object store, which is never killed because its data is only in memory."""
        port = _free_port()
        credentials = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "k"}
        credentials |= {"AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
        self.variables |= credentials
        os.environ.update(credentials)  # this process reads the results
        command = [sys.executable, "-m", "benchmarks.s3", "127.0.0.1", str(port)]
        with self.log.open("w") as log:
            self.store = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        while not accepts_connections(f"127.0.0.1:{port}"):
            time.sleep(POLL_SECONDS)
        fsspec.filesystem("s3").mkdir(BUCKET)

    def storage_variables(self, project: Path) -> dict[str, str]:
        """Return the environment variable with the URL of the project's storage."""
        return {"ELMO_STORAGE": f"{BUCKET}/{project.name}"} if self.s3 else {}

    def __exit__(self, *_: object) -> None:
        if self.s3:
            self.store.kill()
            self.store.wait()
        for process in self.processes.values():
            _kill_tree(process.pid)
            process.wait()

    @property
    def nodes(self) -> list[int]:
        """Return the process ids of the running nodes."""
        return [self.processes[name].pid for name in self.processes if name.startswith("node")]

    def killable_kinds(self) -> set[str]:
        """Return the kinds of parts that have run long enough to be killed."""
        latest_start = time.monotonic() - SETTLING_SECONDS
        kinds = {k.partition(" ")[0] for k in self.processes if self.start_times[k] < latest_start}
        return kinds | {"raylet"} if "node" in kinds else kinds

    def restart_parts(self) -> None:
        """Start the parts that are due, and schedule the restart of those that ended."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                _kill_tree(process.pid)
                self._schedule_restart(name)
        for name in [k for k, due_time in self.due_times.items() if due_time < time.monotonic()]:
            if name.startswith("node") and not accepts_connections(self.ray):
                continue  # without a head, a node ends at once
            del self.due_times[name]
            self.start_times[name] = time.monotonic()
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                env=_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill_part(self, kind: str, rng: random.Random) -> None:
        """Kill one part of a kind: all its processes or, for `raylet`, only one raylet."""
        prefix = "node" if kind == "raylet" else kind
        name = rng.choice([name for name in sorted(self.processes) if name.startswith(prefix)])
        pid = self.processes[name].pid
        if kind == "raylet":
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if Path(process.cmdline()[0]).name == "raylet":
                        process.kill()
            return
        _kill_tree(pid)
        self.processes[name].wait()
        self._schedule_restart(name)

    def _schedule_restart(self, name: str) -> None:
        del self.processes[name]
        self.due_times[name] = time.monotonic() + RESTART_SECONDS


def _busy_processes(pid: int) -> list[tuple[psutil.Process, str]]:
    """Return the busy Ray processes below `pid`, with their kinds."""
    processes = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and not title.startswith(IDLE_TITLES):
                    kind = next(k for start, k in KIND_BY_TITLE.items() if title.startswith(start))
                    processes.append((process, kind))
    return processes


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            _kill(member)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _last_step(project: Path, url: str) -> int:
    """Return the last step that the training in progress has recorded; 0 if nothing is trained."""
    paths = [Path(folder, file) for folder, _, files in os.walk(project) for file in files]
    names = [str(path.relative_to(project)) for path in paths]
    names += Location(url).sizes() if url else []
    curves = [name for name in names if re.fullmatch(r".*work/\w+/\w+/train\.tsv", name)]
    step = 0
    for name in curves:  # only a training in progress has one
        with contextlib.suppress(OSError, ValueError, IndexError):
            is_local = (project / name).exists()
            text = (project / name).read_text() if is_local else Location(url).read(name).decode()
            step = int(text.splitlines()[-1].split("\t")[0])
    return step


def _program_path(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _environment() -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "ELMO", "MLFLOW"))}
    one_thread = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "ELMO_COMPILE": "0"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{inherited.get('PATH', '')}"
    settings = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT), "PATH": path}
    return inherited | one_thread | settings | {"DVC_NO_ANALYTICS": "1", "RAY_worker_niceness": "0"}


if __name__ == "__main__":
    main()
