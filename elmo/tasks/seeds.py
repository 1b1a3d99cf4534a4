"""The seeds of a task, trained side by side: each on one thread, some in processes of their own.

A seed's training depends on no other and leaves its result in its work folder, so where it ran
changes nothing. A helper is `python -m elmo.tasks.seeds`: it reads the training, pickled, and the
numbers of seeds from its standard input, and writes what it reports to its standard output.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from elmo.errors import ElmoError
from elmo.io.locks import work_folder_lock
from elmo.nn.threads import module_command
from elmo.tasks.settings import TaskSettings
from elmo.tasks.train import ReportEpoch, TaskModel, TaskProgress, fit_task
from elmo.tasks.vectors import Vectors

WORTH = 4.0  # seconds that a seed must take for a helper, which starts in about 3, to pay off
DONE, FAILED = "done", "failed"  # reported by a helper, besides epochs


@dataclass(frozen=True)
class SeedTraining:
    """What the training of each seed of a task needs; it can be pickled.

    `network(seed=k)` returns the untrained network of seed k; `train`, `dev` and `vectors` are
    those of `fit_task`, and `folders` the seeds' work folders.
    """

    network: Callable[..., TaskModel]
    train: Sequence[Any]
    dev: Sequence[Any]
    vectors: Vectors | None
    settings: TaskSettings
    folders: Mapping[int, Path]

    def run(self, seed: int, report: ReportEpoch) -> tuple[TaskModel, TaskProgress]:
        """Return the trained network of a seed; at once if its training has finished.

        `report("epoch", figures)` is called after each epoch.
        """
        network = self.network(seed=seed)
        progress = fit_task(
            network,
            self.train,
            self.dev,
            vectors=self.vectors,
            settings=self.settings,
            seed=seed,
            work=self.folders[seed],
            report=report,
        )
        return network, progress

    def run_in_folder(self, seed: int, report: ReportEpoch) -> None:
        """Train a seed, so that its work folder holds the result; nobody else may work there."""
        with work_folder_lock(self.folders[seed]):
            self.run(seed, report)


def train_seeds(
    training: SeedTraining, seeds: Sequence[int], report: ReportEpoch, *, processes: int
) -> None:
    """Train each of the seeds, so that their work folders hold the results.

    At most `processes` work at once, this one among them; it begins alone, and starts the others
    after the first epoch if the seeds take long. `report` is called in this thread, seed by seed in
    their order: with `seed` before each and `epoch` after each epoch, which for a seed that another
    process trained may be later. Raises what a training raises, and `ElmoError` where a process
    ends.
    """
    waiting = deque(seeds)
    reports = _Reports(seeds, report)
    began, first = time.monotonic(), True
    with ExitStack() as helpers:

        def heard(seed: int, kind: str, figures: dict[str, float]) -> None:
            nonlocal first
            reports.add(seed, kind, figures)
            reports.pass_on()
            if first and (time.monotonic() - began) * training.settings.epochs >= WORTH:
                for _ in range(min(len(waiting), processes - 1)):
                    helpers.enter_context(_Helper(training, waiting, reports))
            first = False

        for seed in iter(partial(_next, waiting), None):
            training.run_in_folder(seed, partial(heard, seed))
            reports.add(seed, DONE, {})
            reports.pass_on()
        reports.pass_on_rest()


def _next(waiting: deque[int]) -> int | None:
    """Take the next seed, None if there is none; several threads take from the same."""
    try:
        return waiting.popleft()
    except IndexError:
        return None


class _Reports:
    """What the trainings report, kept until it is the turn of their seed."""

    def __init__(self, seeds: Sequence[int], report: ReportEpoch) -> None:
        self._arrived: SimpleQueue[tuple[int, str, Any]] = SimpleQueue()
        self._kept: dict[int, deque[tuple[str, Any]]] = {seed: deque() for seed in seeds}
        self._turns, self._report, self._begun = deque(seeds), report, False

    def add(self, seed: int, kind: str, figures: Any) -> None:
        """Take a report; any thread may call this."""
        self._arrived.put((seed, kind, figures))

    def pass_on(self) -> None:
        """Pass on all that has its turn; raise what a training failed with."""
        while not self._arrived.empty():
            self._take()
        while self._turns:
            seed = self._turns[0]
            if not self._begun:
                self._begun = True
                self._report("seed", {"seed": seed})
            while self._kept[seed]:
                kind, figures = self._kept[seed].popleft()
                if kind == DONE:
                    self._turns.popleft()
                    self._begun = False
                    break
                self._report(kind, figures)
            else:
                return

    def pass_on_rest(self) -> None:
        """Pass on everything, waiting for what other processes still train."""
        self.pass_on()
        while self._turns:
            self._take()
            self.pass_on()

    def _take(self) -> None:
        seed, kind, figures = self._arrived.get()
        if kind == FAILED:
            raise figures
        self._kept[seed].append((kind, figures))


class _Helper:
    """A process that trains seeds of `waiting`, one after another; the context's end ends it."""

    def __init__(self, training: SeedTraining, waiting: deque[int], reports: _Reports) -> None:
        self._waiting, self._reports = waiting, reports
        command, variables = module_command(__name__, threads=1)
        self._process = subprocess.Popen(
            command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._job = pickle.dumps(training)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def __enter__(self) -> "_Helper":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join()
        with suppress(OSError), self._process:  # closes the pipes
            pass

    def _work(self) -> None:
        """Let the process train seeds until none is left, and add what it reports."""
        given, told = self._process.stdin, self._process.stdout
        assert given is not None and told is not None
        to_send = self._job
        for seed in iter(partial(_next, self._waiting), None):
            try:
                given.write(to_send + b"%d\n" % seed)
                given.flush()
                kind, to_send = "", b""
                while kind not in (DONE, FAILED):
                    kind, figures = pickle.load(told)
                    self._reports.add(seed, kind, figures)
            except (OSError, EOFError, pickle.UnpicklingError):
                code = self._process.wait()
                why = f"the process that trained seed {seed} ended with {code}"
                error = ElmoError(f"{why}; run the same command again to go on")
                return self._reports.add(seed, FAILED, error)


def _main() -> None:
    """Train the seeds that standard input names; end with it, whatever is being done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    given = sys.stdin.buffer
    told = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else is written among the reports
    training: SeedTraining = pickle.load(given)
    seeds: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        for line in given:
            seeds.put(int(line))
        os._exit(0)

    def tell(kind: str, figures: Any) -> None:
        pickle.dump((kind, figures), told)
        told.flush()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        seed = seeds.get()
        try:
            training.run_in_folder(seed, tell)
        except ElmoError as error:
            tell(FAILED, error)
        else:
            tell(DONE, {})


if __name__ == "__main__":
    _main()
