"""Run the pipeline on several Ray nodes of this machine while its parts are killed one by one.

    python -m benchmarks.chaos [--minutes 15] [--every 15] [--each 4] [--nodes 3] [--seed 1]
                               [--text-kb 1500] [--s3]

Runs `dvc repro features` repeatedly, each time in an empty project, on a Ray cluster with an MLflow
server. With `--s3` it runs the whole graph, with data and models only on moto's S3 server. While
the cluster works, one part is killed (SIGKILL) every few seconds, chosen at random from the seed:
an actor that tokenizes, counts or embeds, a training worker, another Ray task, a node, a node's
raylet alone, Ray's head, the tracking server, or the stage itself. In one stage of a pass at most
`--each` parts are killed, so that the pass reaches the next stage. Parts of the cluster are
restarted after a few seconds. If the command has ended, it is run again, as a user would do. At the
end of each pass, its files and losses are compared with those of an undisturbed run. Prints each
kill (the stage, and what was killed), and as JSON the kills by kind, the training steps that were
repeated, and how the commands ended.
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

from benchmarks.machine import show
from elmo.io.location import Location
from elmo.io.records import read_record, sha256
from pipeline.cluster.job import STORED
from pipeline.cluster.storage import Pointer, files_of, read_output

ROOT = Path(__file__).resolve().parents[1]
RESTART_SECONDS = 5.0  # until a lost part of the cluster, or an ended command, starts again
SETTLED = 25.0  # seconds for which what has been started is left in peace
POLL_SECONDS = 0.2  # seconds between two looks at what is finished
TITLES = {"ray::Actor.": "actor", "ray::RayTrainWorker": "trainer", "ray::": "task"}
IDLE = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::TrainController")
# How likely each kind is chosen, relative to the others that are there.
WEIGHTS = {"task": 9, "actor": 9, "trainer": 9, "node": 3, "raylet": 2, "stage": 2}
WEIGHTS |= {"head": 1, "server": 1}
BUCKET = "s3://chaos"
RESULT = re.compile(r"weights\.safetensors|.*\.arrow|.*-[0-9]{5}-.*")
WORDS = "a cat sat on the mat while an old dog slept near my open door and rain fell".split()


def accepts_connections(address: str) -> bool:
    """Tell whether something accepts TCP connections at `address`, which is HOST:PORT."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


@dataclass
class Trial:
    """The record of all passes: the stage and kind of each kill, the training steps repeated, and
    the error line of each command that ended early."""

    kills: list[tuple[str, str]] = field(default_factory=list)
    passes: int = 0
    unequal_passes: int = 0
    steps_again: int = 0
    ended: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        """Return the seconds since the trial began."""
        return time.monotonic() - self.began


def main() -> None:
    """Run passes until the time is over, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills")
    parser.add_argument("--each", type=int, default=4, help="most kills in one stage of a pass")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-kb", type=int, default=1500)
    parser.add_argument("--s3", action="store_true", help="keep data and models only on S3")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started ends as well
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        home = Path(name)
        _write_text(home / "text.txt", options.text_kb)
        calm = _project(home, "calm")
        began = time.monotonic()
        targets = () if options.s3 else ("features",)
        if code := Command(calm, {"ELMO_WORKERS": "1", "ELMO_CPUS": "1"}, targets).process.wait():
            sys.exit(f"undisturbed, it ended with {code}: {(calm / 'log').read_text()[-2000:]}")
        expected = results(calm)
        print(
            f"undisturbed: {len(expected)} results in {time.monotonic() - began:.0f} s", flush=True
        )
        with Cluster(home, options.nodes, s3=options.s3) as cluster:
            trial = disturb(home, cluster, expected, options)
    show(
        {
            "minutes": options.minutes,
            "seed": options.seed,
            "passes": trial.passes,
            "passes_with_other_results": trial.unequal_passes,
            "kills": Counter(kind for _, kind in trial.kills),
            "steps_again": trial.steps_again,
            "commands_that_ended": trial.ended,
        }
    )
    sys.exit(1 if trial.unequal_passes else 0)


def _write_text(path: Path, kilobytes: int) -> None:
    draw = random.Random(1)
    with path.open("w") as file:
        while file.tell() < 1000 * kilobytes:
            file.write(" ".join(draw.choices(WORDS, k=draw.randint(4, 30))) + "\n")
            file.write("\n" * (draw.random() < 0.1))


def _project(home: Path, name: str) -> Path:
    """Make an empty project with this graph, the text, and a tiny network."""
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
    command = [_program("dvc"), "init", "--no-scm", "--quiet"]
    subprocess.run(command, cwd=folder, env=_environment(), check=True)
    return folder


def results(project: Path) -> Counter[str]:
    """Return the name and SHA-256 of each shard, weights file and part, and the perplexity of each
    recorded step, with how often each occurs."""
    paths = [
        project / "models" / stage / "weights.safetensors" for stage in ("pretrain", "finetune")
    ]
    paths += (project / "data" / "shards").rglob("*.arrow")
    paths += (project / "data" / "features").rglob("*-?????-*")
    files = {f"{path.relative_to(project)} {sha256(path)}" for path in paths if path.exists()}
    for mark in project.rglob(STORED):  # what is at a URL
        url, name = f"{BUCKET}/{project.name}", read_record(mark, Pointer).folder
        record = read_output(url, name)
        assert record is not None, f"{url}/{name}"
        out = files_of(url, name, record)
        names = [name for name in out.tree() if RESULT.fullmatch(name.rpartition("/")[2])]
        files |= {f"{mark.parent.relative_to(project)}/{name} {out.sha256(name)}" for name in names}
    curves = (project / "curves").glob("*/train.tsv")
    perplexity_lines = [
        f"{path.parent.name} " + " ".join(line.split("\t")[:3])
        for path in curves
        for line in path.read_text().splitlines()
    ]
    return Counter([*files, *perplexity_lines])


def disturb(
    home: Path, cluster: "Cluster", expected: Counter[str], options: argparse.Namespace
) -> Trial:
    """Run passes with kills until the time is over; the last pass finishes without more kills."""
    draw, trial = random.Random(options.seed), Trial()
    while trial.seconds() < 60 * options.minutes:
        project = _project(home, f"pass{trial.passes}")
        _pass(project, cluster, trial, draw, options)
        trial.passes += 1
        is_equal = results(project) == expected
        trial.unequal_passes += not is_equal
        print(f"  pass {trial.passes}: {'equal' if is_equal else 'NOT equal'}", flush=True)
    return trial


def _pass(
    project: Path,
    cluster: "Cluster",
    trial: Trial,
    draw: random.Random,
    options: argparse.Namespace,
) -> None:
    """Run all stages in a project, with kills until the time is over."""
    targets = () if options.s3 else ("features",)
    variables = cluster.variables | cluster.storage_of(project)
    command = Command(project, variables, targets)
    next_kill = trial.seconds() + options.every * draw.uniform(0.5, 1.5)
    struck: Counter[str] = Counter()
    url = variables.get("ELMO_STORAGE", "")
    step = _last_step(project, url)
    try:
        while (code := command.process.poll()) != 0:
            time.sleep(5 * POLL_SECONDS if url else POLL_SECONDS)
            cluster.tend()
            previous_step, step = step, _last_step(project, url)
            if 0 < step < previous_step and trial.kills:
                trial.steps_again += previous_step - step
            if code is not None:
                trial.ended.append(command.error())
                print(f"  {trial.seconds():6.0f} s: it ended: {trial.ended[-1]}", flush=True)
                time.sleep(RESTART_SECONDS)
                command = Command(project, variables, targets)
            elif next_kill < trial.seconds() < 60 * options.minutes:
                stage = command.label()
                free = stage and struck[stage] < options.each
                if free and (kind := strike(draw, cluster, command)):
                    next_kill = trial.seconds() + options.every * draw.uniform(0.5, 1.5)
                    struck[stage] += 1
                    trial.kills.append((stage, kind))
                    print(f"  {trial.seconds():6.0f} s, {stage}: {kind}", flush=True)
    finally:
        _kill_tree(command.process.pid)
        command.process.wait()


def strike(draw: random.Random, cluster: "Cluster", command: "Command") -> str:
    """Kill one part at random, if work is in progress; return its kind, or "" if none is."""
    working = {process: kind for node in cluster.nodes for process, kind in _working(node)}
    kinds_present = {*working.values(), *cluster.kinds(), *command.kinds()}
    if not {"actor", "trainer"} & kinds_present:
        return ""
    kinds = [kind for kind in WEIGHTS if kind in kinds_present]
    kind = draw.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
    if kind == "stage":
        _kill(command.stage())
    elif kind in working.values():
        _kill(draw.choice([process for process in working if working[process] == kind]))
    else:
        cluster.lose(kind, draw)
    return kind


class Command:
    """`dvc repro TARGETS`, and the lines it prints."""

    def __init__(self, project: Path, variables: dict[str, str], targets: Sequence[str]) -> None:
        self.log = project / "log"
        with self.log.open("a") as log:
            self._began = log.tell()
            self.process = subprocess.Popen(
                [_program("dvc"), "repro", *targets],
                cwd=project,
                env=_environment() | {"ELMO_CHECKPOINT_MINUTES": "0.1"} | variables,
                stdout=log,
                stderr=log,
            )
        self.started = time.monotonic()

    def kinds(self) -> set[str]:
        """Return {"stage"} if the stage has run long enough to have begun its work."""
        return {"stage"} if time.monotonic() - self.started > SETTLED else set()

    def stage(self) -> psutil.Process:
        """Return the process of the running stage, or DVC's between two stages."""
        dvc_process = psutil.Process(self.process.pid)
        for child in dvc_process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "elmo_pipeline" in child.cmdline():
                    return child
        return dvc_process

    def label(self) -> str:
        """Return the name of the running stage and of its text; empty between two stages."""
        with contextlib.suppress(psutil.Error, ValueError):
            words = self.stage().cmdline()
            stage, *options = words[words.index("elmo_pipeline") + 1 :]
            return " ".join([stage, *(x for x in options[1:2] if x in ("general", "domain"))])
        return ""

    def error(self) -> str:
        """Return the line that says why the command ended."""
        lines = self.log.read_bytes()[self._began :].decode(errors="replace").splitlines()
        return next((line for line in lines if line.lower().startswith("error")), lines[-1])


class Cluster:
    """Ray's head, which runs no tasks, nodes of one core each, and MLflow's server."""

    def __init__(self, home: Path, count: int, *, s3: bool) -> None:
        self.s3, self.log = s3, home / "s3.log"
        self.ray, tracking = (f"127.0.0.1:{_free_port()}" for _ in range(2))
        address, port = f"--address={self.ray}", self.ray.rpartition(":")[2]
        head = ["--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
        node = [address, "--num-cpus=1"]
        ray = [_program("ray"), "start", "--block", "--disable-usage-stats"]
        ray += ["--object-store-memory=100000000"]
        self.commands = {"head": [*ray, *head]}
        self.commands |= {f"node {k}": [*ray, *node] for k in range(count)}
        server = [_program("mlflow"), "server", "--port", tracking.rpartition(":")[2]]
        server += ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--workers", "1"]
        self.commands["server"] = [*server, "--artifacts-destination", str(home / "artifacts")]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.due_times = dict.fromkeys(self.commands, 0.0)
        self.started: dict[str, float] = {}
        self.variables = {
            "RAY_ADDRESS": self.ray,
            "MLFLOW_TRACKING_URI": f"http://{tracking}",
            "ELMO_WORKERS": "1",
            "ELMO_CPUS": "1",
        }

    def __enter__(self) -> "Cluster":
        if self.s3:
            self._start_s3()
        self.tend()
        return self

    def _start_s3(self) -> None:
        """Start the object store. It is never killed, because it keeps everything in memory."""
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

    def storage_of(self, project: Path) -> dict[str, str]:
        """Return the environment variable with the project's URL."""
        return {"ELMO_STORAGE": f"{BUCKET}/{project.name}"} if self.s3 else {}

    def __exit__(self, *_: object) -> None:
        if self.s3:
            self.store.kill()
            self.store.wait()
        for process in self.running.values():
            _kill_tree(process.pid)
            process.wait()

    @property
    def nodes(self) -> list[int]:
        """Return the process ids of the running nodes."""
        return [self.running[name].pid for name in self.running if name.startswith("node")]

    def kinds(self) -> set[str]:
        """Return the kinds of parts that have run long enough to be killed."""
        settled = [name for name in self.running if time.monotonic() - self.started[name] > SETTLED]
        kinds = {name.partition(" ")[0] for name in settled}
        return kinds | {"raylet"} if "node" in kinds else kinds

    def tend(self) -> None:
        """Restart the parts that are due; a part that ended by itself is due a while later."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                _kill_tree(process.pid)
                self._down(name)
        for name in [k for k, due_time in self.due_times.items() if due_time < time.monotonic()]:
            if name.startswith("node") and not accepts_connections(self.ray):
                continue  # it would end: there is no head
            del self.due_times[name]
            self.started[name] = time.monotonic()
            quiet = subprocess.DEVNULL
            self.running[name] = subprocess.Popen(
                self.commands[name],
                env=_environment(),
                stdout=quiet,
                stderr=quiet,
                start_new_session=True,
            )

    def lose(self, kind: str, draw: random.Random) -> None:
        """Kill one part of a kind and everything in it."""
        prefix = "node" if kind == "raylet" else kind
        name = draw.choice([name for name in sorted(self.running) if name.startswith(prefix)])
        pid = self.running[name].pid
        if kind == "raylet":
            for process in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if Path(process.cmdline()[0]).name == "raylet":
                        process.kill()
            return
        _kill_tree(pid)
        self.running[name].wait()
        self._down(name)

    def _down(self, name: str) -> None:
        del self.running[name]
        self.due_times[name] = time.monotonic() + RESTART_SECONDS


def _working(pid: int) -> list[tuple[psutil.Process, str]]:
    """Return the busy Ray processes below `pid`, with their kinds."""
    working = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and not title.startswith(IDLE):
                    kind = next(kind for start, kind in TITLES.items() if title.startswith(start))
                    working.append((process, kind))
    return working


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in [process, *process.children(recursive=True)]:
            _kill(member)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _last_step(project: Path, url: str) -> int:
    """Return the last training step that the training in progress has recorded; 0 if there is no
    training."""
    names = [Path(path, file) for path, _, files in os.walk(project) for file in files]
    files = [str(path.relative_to(project)) for path in names]
    files += Location(url).tree() if url else []
    curves = [name for name in files if re.fullmatch(r".*work/\w+/\w+/train\.tsv", name)]
    step = 0
    for name in curves:  # of the one training under way
        with contextlib.suppress(OSError, ValueError, IndexError):
            is_local = (project / name).exists()
            text = (project / name).read_text() if is_local else Location(url).read(name).decode()
            step = int(text.splitlines()[-1].split("\t")[0])
    return step


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "ELMO", "MLFLOW"))}
    one_thread = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "ELMO_COMPILE": "0"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    settings = {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT), "PATH": path}
    return kept | one_thread | settings | {"DVC_NO_ANALYTICS": "1", "RAY_worker_niceness": "0"}


if __name__ == "__main__":
    main()
