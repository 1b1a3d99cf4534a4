"""The seeds of a task, trained side by side: each on one thread, some in processes of their own.

A seed's training depends on no other and leaves its result in its work folder, so where it ran
changes nothing. A helper is `python -m elmo.tasks.seeds`: it reads the training, pickled, and the
numbers of seeds from its standard input, and writes what it reports to its standard output.
"""

import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from elmo.errors import ElmoError, first_line
from elmo.io.atomic import write_json
from elmo.io.locks import work_folder_lock
from elmo.io.records import Count, read_record
from elmo.nn.threads import module_command, one_thread
from elmo.tasks.settings import TaskSettings
from elmo.tasks.train import ReportEpoch, TaskModel, TaskProgress, fit_task
from elmo.tasks.vectors import Vectors

START = 3.0  # seconds that a helper takes to begin
REPORTED = "reported.json"  # in a seed's work folder: how many epochs were passed on to `report`
DONE, FAILED = "done", "failed"  # what a training reports besides epochs


@dataclass(frozen=True)
class SeedTraining:
    """All that the training of each seed of a task needs; it can be pickled.

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

        `report("epoch", figures)` is called after each epoch; where a training is resumed, also for
        the epochs before.
        """
        with one_thread():  # as in a helper
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

    def run_locked(self, seed: int, report: ReportEpoch) -> None:
        """Train a seed, so that its work folder holds the result; nobody else may work there."""
        with work_folder_lock(self.folders[seed]):
            self.run(seed, report)


def train_seeds(
    training: SeedTraining, seeds: Sequence[int], report: ReportEpoch, *, processes: int
) -> None:
    """Train each of the seeds, so that their work folders hold the results.

    At most `processes` work at once, this one among them; it begins alone, and starts the others
    after an epoch if the seeds that wait will take long. `report` is called in this thread, seed by
    seed in their order: with `seed` before each and `epoch` after each epoch, which for a seed that
    another process trains may be later. An epoch that was reported before an interruption is not
    reported again, unless the interruption came during its report. Raises what a training raises,
    and `ElmoError` where a process ends.
    """
    waiting = deque(seeds)
    reports = _Reports(seeds, training.folders, report)
    reports.pass_on()
    began, helped = time.monotonic(), processes == 1
    with ExitStack() as helpers:

        def heard(seed: int, kind: str, figures: dict[str, float]) -> None:
            nonlocal began, helped
            seed_seconds = (time.monotonic() - began) * training.settings.epochs
            reports.add(seed, kind, figures)
            reports.pass_on()
            # A helper pays off where what waits takes twice as long as its start.
            if not helped and seed_seconds * len(waiting) >= 2 * START:
                helped = True
                for _ in range(min(len(waiting), processes - 1)):
                    helpers.enter_context(_Helper(training, waiting, reports))
            began = time.monotonic()

        for seed in iter(partial(_next, waiting), None):
            training.run_locked(seed, partial(heard, seed))
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
    """The reports of the trainings, kept until it is the turn of their seed.

    A file in each seed's work folder counts the epochs passed on: what was kept when a run was
    interrupted is passed on by the run that resumes it.
    """

    def __init__(
        self, seeds: Sequence[int], folders: Mapping[int, Path], report: ReportEpoch
    ) -> None:
        self._arrived: SimpleQueue[tuple[int, str, Any]] = SimpleQueue()
        self._kept: dict[int, deque[tuple[str, Any]]] = {seed: deque() for seed in seeds}
        self._turns, self._report, self._announced = deque(seeds), report, False
        self._folders = folders

    def add(self, seed: int, kind: str, figures: Any) -> None:
        """Take a report; any thread may call this."""
        self._arrived.put((seed, kind, figures))

    def pass_on(self) -> None:
        """Pass on all that has its turn; raise what a training failed with."""
        while not self._arrived.empty():
            self._take()
        while self._turns:
            seed = self._turns[0]
            if not self._announced:
                self._announced = True
                self._report("seed", {"seed": seed})
            while self._kept[seed]:
                kind, figures = self._kept[seed].popleft()
                if kind == DONE:
                    self._turns.popleft()
                    self._announced = False
                    break
                self._pass_on_epoch(seed, figures)
            else:
                return

    def pass_on_rest(self) -> None:
        """Pass on everything, waiting for what other processes still train."""
        self.pass_on()
        while self._turns:
            self._take()
            self.pass_on()

    def _pass_on_epoch(self, seed: int, figures: dict[str, float]) -> None:
        path, epoch, reported = self._folders[seed] / REPORTED, int(figures["epoch"]), 0
        with suppress(ElmoError, KeyError):  # none yet, or damaged: then reported twice
            reported = read_record(path, dict[str, Count])["epochs"]
        if epoch > reported:
            self._report("epoch", figures)
            write_json(path, {"epochs": epoch})

    def _take(self) -> None:
        seed, kind, figures = self._arrived.get()
        if kind == FAILED:
            raise figures
        self._kept[seed].append((kind, figures))


class _Helper:
    """A process that trains seeds of `waiting`, one after another, while the context is open."""

    def __init__(self, training: SeedTraining, waiting: deque[int], reports: _Reports) -> None:
        self._training, self._waiting, self._reports = training, waiting, reports

    def __enter__(self) -> "_Helper":
        command, variables = module_command(__name__, threads=1)
        self._process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # an interruption is not its to handle: this process ends it
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._thread.join()
        with suppress(OSError), self._process:  # closes the pipes
            pass

    def _end(self) -> str:
        """Make sure that the process has ended; return how."""
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return "wrote something that is not a report and was killed"
        return f"ended with {code}" if code >= 0 else f"was killed (signal {-code})"

    def _work(self) -> None:
        """Let the process train seeds until none is left, and add what it reports."""
        given, told = self._process.stdin, self._process.stdout
        assert given is not None and told is not None
        sent = False
        for seed in iter(partial(_next, self._waiting), None):
            try:
                if not sent:
                    pickle.dump(self._training, given)
                sent = True
                given.write(b"%d\n" % seed)
                given.flush()
                kind = ""
                while kind not in (DONE, FAILED):
                    kind, figures = pickle.load(told)
                    self._reports.add(seed, kind, figures)
            except (OSError, EOFError, pickle.UnpicklingError):
                error = ElmoError(
                    f"the process that trained seed {seed} {self._end()}; run the same command "
                    "again to resume, with OMP_NUM_THREADS=1 to train one seed after another"
                )
                return self._reports.add(seed, FAILED, error)
            except Exception as error:  # the training could not be sent
                return self._reports.add(seed, FAILED, error)
            if kind == FAILED:
                return
        with suppress(OSError):
            given.close()  # which ends the process


def _main() -> None:
    """Train the seeds that standard input names; end with it, whatever is being done."""
    given = sys.stdin.buffer
    told = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(2, sys.stdout.fileno())  # nothing else is written among the reports
    try:
        training: SeedTraining = pickle.load(given)
    except (EOFError, pickle.UnpicklingError):
        return  # the process that started this one is gone
    seeds: SimpleQueue[int] = SimpleQueue()

    def listen() -> None:
        for line in given:
            seeds.put(int(line))
        os._exit(0)

    def tell(kind: str, figures: Any) -> None:
        told.write(pickle.dumps((kind, figures)))
        told.flush()

    threading.Thread(target=listen, daemon=True).start()
    while True:
        seed = seeds.get()
        try:
            training.run_locked(seed, tell)
        except Exception as error:
            error.add_note(traceback.format_exc())
            tell(FAILED, _portable(error))
        else:
            tell(DONE, {})


def _portable(error: Exception) -> Exception:
    """Return the error, or if another process could not read it, one with its first line."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = ElmoError if isinstance(error, ElmoError) else RuntimeError
        return kind(first_line(error))
    return error


if __name__ == "__main__":
    _main()
