"""Tokenize → features on several Ray nodes of this machine, while one thing at a time is killed.

    python -m benchmarks.chaos [--minutes 15] [--every 10] [--nodes 3] [--seed 1] [--text-mb 8]

Every few seconds while work is under way, at random by the seed, one is killed at once (SIGKILL): a
process that works, an actor, a node, or the driver, which is then started again, as a user would.
When both stages are done their files are compared with those of a run that nobody disturbed, and
they begin anew in an empty folder. Prints a row for each kill: what it was, how many pieces of work
were done again for it, and the seconds until the next piece was finished.
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.machine import show

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("worker", "actor", "node", "driver")
BACK = 5.0  # seconds after which a killed node starts again
LOOK = 0.2  # seconds between two looks at what is finished
WORDS = "a cat sat on the mat while an old dog slept near my open door and rain fell".split()


@dataclass
class Kill:
    """One kill: when, what, how much work was under way in it, when the next piece was finished."""

    at: float
    what: str
    again: int
    silence: float | None = None


@dataclass
class Trial:
    """What happens to the passes: kills, passes done, and when the terminal was written to."""

    kills: list[Kill] = field(default_factory=list)
    passes: int = 0
    wrong: int = 0
    ended_early: int = 0
    longest_silent: float = 0.0  # of the terminal, while a driver ran
    began: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def heard(self) -> None:
        """A piece was finished: no kill before it is followed by silence any longer."""
        for kill in self.kills:
            if kill.silence is None:
                kill.silence = self.now() - kill.at


def main() -> None:
    """Run passes until the time is over, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two kills")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text-mb", type=float, default=8.0)
    parser.add_argument("--driver", nargs=2, metavar=("HOME", "OUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        drive(*map(Path, options.driver))
        return
    with tempfile.TemporaryDirectory(prefix="chaos") as name:
        home = Path(name)
        prepare(home, options.text_mb)
        expected = undisturbed(home)
        print(f"undisturbed: {len(expected)} files", flush=True)
        with Nodes(options.nodes) as nodes:
            trial = disturb(home, nodes, expected, options)
    table(trial, options)
    sys.exit(1 if trial.wrong else 0)


def prepare(home: Path, megabytes: float) -> None:
    """Write a text and an untrained model."""
    from elmo.characters import Characters
    from elmo.model_folder import save_model
    from elmo.nn.bilm import BiLM, Config
    from elmo.tokenizer import describe
    from elmo.vocabulary import Vocabulary

    draw = random.Random(1)
    with (home / "text.txt").open("w") as file:
        while file.tell() < megabytes * 1e6:
            file.write(" ".join(draw.choices(WORDS, k=draw.randint(4, 30))) + "\n")
            file.write("\n" * (draw.random() < 0.1))
    shape = Config(
        char_dim=8,
        filters=((1, 16), (2, 16), (3, 32)),
        activation="relu",
        highways=1,
        cells=128,
        projection=32,
        layers=2,
        cell_clip=3.0,
        projection_clip=3.0,
        skip=True,
        input_words=None,
    )
    bilm = BiLM(shape, characters=Characters().size)
    bilm.reset_parameters(1)
    save_model(
        home / "model",
        bilm=bilm,
        vocabulary=Vocabulary(["<S>", "</S>", "<UNK>", *WORDS]),
        characters=Characters(),
        softmax=None,
        training={},
        tokenizer=describe("whitespace", "line"),
    )


def drive(home: Path, out: Path) -> None:
    """Both stages, on the cluster of RAY_ADDRESS or here; finished work is taken up again."""
    from elmo.settings import StoreSettings
    from elmo.store.build import build
    from pipeline import features, tokenize, workers
    from pipeline.cluster import Cluster
    from pipeline.params import Tokenize
    from pipeline.text.inputs import find_inputs

    cluster, runs = Cluster(cpus=1), out / "runs"
    how = Tokenize(
        tokenizer="whitespace", sentences="line", documents="auto", heldout=0.1, shard_bytes=1 << 17
    )
    with workers.session():
        if not (out / "shards" / "manifest.json").exists():
            inputs = find_inputs([str(home / "text.txt")])
            tokenize.tokenize(
                inputs, out / "shards", how, column="text", runs=runs, cluster=cluster
            )
        build(
            out / "store",
            shards=out / "shards",
            model=home / "model",
            settings=StoreSettings(),
            work=runs / "features",
            run=features._on(cluster),
        )


def undisturbed(home: Path) -> set[str]:
    """What both stages write when nothing is killed."""
    command = [sys.executable, "-m", "benchmarks.chaos", "--driver", str(home), str(home / "calm")]
    subprocess.run(command, cwd=ROOT, env=_environment(), check=True)
    return digests(home / "calm")


def digests(out: Path) -> set[str]:
    """The name and SHA-256 of each file of shards and parts."""
    from elmo.files import sha256

    paths = [*(out / "shards").glob("*.arrow"), *(out / "store").glob("*.parquet")]
    return {f"{path.name} {sha256(path)}" for path in paths}


def disturb(home: Path, nodes: "Nodes", expected: set[str], options: argparse.Namespace) -> Trial:
    """Passes with kills until the time is over; the last pass ends in peace."""
    draw, trial = random.Random(options.seed), Trial()
    while time.monotonic() - trial.began < 60 * options.minutes:
        out = home / f"pass{trial.passes}"
        _pass(home, out, nodes, trial, draw, options)
        trial.passes += 1
        same = digests(out) == expected
        trial.wrong += not same
        print(f"  pass {trial.passes}: {'equal' if same else 'NOT equal'}", flush=True)
    return trial


def _pass(
    home: Path,
    out: Path,
    nodes: "Nodes",
    trial: Trial,
    draw: random.Random,
    options: argparse.Namespace,
) -> None:
    """Both stages into `out`, with kills while there is time."""
    driver = Driver(home, out, nodes.address)
    next_kill, finished = trial.now() + options.every, _pieces(out)
    try:
        while (code := driver.process.poll()) != 0:
            time.sleep(LOOK)
            nodes.revive()
            if (pieces := _pieces(out)) != finished:
                finished = pieces
                trial.heard()
            trial.longest_silent = max(trial.longest_silent, driver.silent())
            if code is not None:
                trial.ended_early += 1
                print(f"  the driver ended: {driver.lines[-1:]}", flush=True)
                driver = Driver(home, out, nodes.address)
            if next_kill < trial.now() < 60 * options.minutes:
                if kill := strike(draw, nodes, driver):
                    next_kill = trial.now() + options.every * draw.uniform(0.5, 1.5)
                    kill.at = trial.now()
                    trial.kills.append(kill)
                    print(f"  {kill.at:6.0f} s: {kill.what}, {kill.again} under way", flush=True)
                    if kill.what == "driver":
                        driver = Driver(home, out, nodes.address)
        trial.heard()
    finally:
        driver.process.kill()
        driver.process.wait()


def strike(draw: random.Random, nodes: "Nodes", driver: "Driver") -> Kill | None:
    """Kill one thing of a kind that is there; None where nothing is under way yet."""
    busy = nodes.busy()
    if not busy:
        return None
    present = {"driver", "node"} | {"actor" if _is_actor(process) else "worker" for process in busy}
    kind = draw.choice([kind for kind in KINDS if kind in present])
    if kind == "driver":
        driver.process.send_signal(signal.SIGKILL)
        driver.process.wait()
        return Kill(0.0, kind, len(busy))
    if kind == "node":
        again = nodes.lose(draw)
        return Kill(0.0, kind, again)
    chosen = [p for p in busy if _is_actor(p) == (kind == "actor")]
    if not chosen:
        return None
    with contextlib.suppress(psutil.Error):
        draw.choice(chosen).kill()
        return Kill(0.0, kind, 1)
    return None


class Driver:
    """The process that runs the stages, and the lines it prints."""

    def __init__(self, home: Path, out: Path, address: str) -> None:
        self.log = home / "driver.log"
        command = [sys.executable, "-m", "benchmarks.chaos", "--driver", str(home), str(out)]
        with self.log.open("w") as log:
            environment = _environment() | {"RAY_ADDRESS": address}
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log
            )
        self._size, self._at = 0, time.monotonic()

    @property
    def lines(self) -> list[str]:
        """What it has printed."""
        return self.log.read_text().splitlines()

    def silent(self) -> float:
        """Seconds since it printed anything."""
        size = self.log.stat().st_size
        if size != self._size:
            self._size, self._at = size, time.monotonic()
        return time.monotonic() - self._at


class Nodes:
    """A head that works on nothing, and nodes of one core each, on this machine."""

    def __init__(self, count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.count = count
        self.running: list[subprocess.Popen[bytes]] = []
        self.due: list[float] = []

    def __enter__(self) -> "Nodes":
        port = self.address.rpartition(":")[2]
        self.head = self._start("--head", f"--port={port}", "--num-cpus=0")
        for _ in range(120):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port))):
                break
            time.sleep(0.5)
        for _ in range(self.count):
            self._add()
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.running, self.head]:
            _kill_tree(process.pid)
            process.wait()

    def busy(self) -> list[psutil.Process]:
        """The processes that work on something now."""
        return [p for node in self.running for p in _working(node.pid)]

    def lose(self, draw: random.Random) -> int:
        """Kill a node with all that runs there; how much was under way."""
        if not self.running:
            return 0
        node = self.running.pop(draw.randrange(len(self.running)))
        again = len(_working(node.pid))
        _kill_tree(node.pid)
        node.wait()
        self.due.append(time.monotonic() + BACK)
        return again

    def revive(self) -> None:
        """Start the nodes whose time has come."""
        for due in [due for due in self.due if due < time.monotonic()]:
            self.due.remove(due)
            self._add()

    def _add(self) -> None:
        self.running.append(self._start(f"--address={self.address}", "--num-cpus=1"))

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        ray = [str(Path(sys.executable).parent / "ray"), "start", *options, "--block"]
        ray += ["--include-dashboard=false"] if "--head" in options else []
        ray += ["--object-store-memory=100000000", "--disable-usage-stats"]
        return subprocess.Popen(
            ray,
            env=_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _working(pid: int) -> list[psutil.Process]:
    """Ray's processes below `pid` that do a task or an actor's method."""
    working = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith(("ray::tokenize_piece", "ray::Actor.do")):
                    working.append(process)
    return working


def _is_actor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "ray::Actor" in " ".join(process.cmdline())
    return False


def _kill_tree(pid: int) -> None:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                one.kill()


def _pieces(out: Path) -> int:
    """How many pieces of work are finished."""
    runs = out / "runs"
    published = sum(1 for _ in (out / "store").glob("part-*.parquet"))
    return published + sum(1 for _ in _records(runs)) + (out / "shards").exists()


def _records(runs: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from runs.glob("tokenize-*/*.json")
        yield from runs.glob("features/*/part-*.parquet")


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "ELMO", "MLFLOW"))}
    one_thread = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "ELMO_COMPILE": "0"}
    return kept | one_thread | {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}


def table(trial: Trial, options: argparse.Namespace) -> None:
    """Print the table, a summary by kind, and the totals."""
    print("| at, s | killed | pieces done again | silence, s |\n|---|---|---|---|")
    for kill in trial.kills:
        silence = "-" if kill.silence is None else f"{kill.silence:.1f}"
        print(f"| {kill.at:.0f} | {kill.what} | {kill.again} | {silence} |")
    by_kind = {
        kind: {
            "kills": len(kills),
            "pieces_done_again": sum(kill.again for kill in kills),
            "longest_silence_s": round(max((k.silence or 0.0 for k in kills), default=0.0), 1),
        }
        for kind in KINDS
        for kills in [[kill for kill in trial.kills if kill.what == kind]]
    }
    totals = {
        "minutes": options.minutes,
        "seed": options.seed,
        "passes": trial.passes,
        "passes_with_other_bytes": trial.wrong,
        "drivers_that_ended_early": trial.ended_early,
        "longest_terminal_silence_s": round(trial.longest_silent, 1),
        "by_kind": by_kind,
    }
    show(totals)


if __name__ == "__main__":
    main()
