"""The seeds of a task, trained side by side: each on one thread, some in processes of their own.

A seed's training depends on no other and leaves its result in its work folder, so where it ran
changes nothing.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.locks import work_folder_lock
from elmo.io.records import Count, read_record
from elmo.nn.memory import keep_freed_memory
from elmo.nn.threads import one_thread
from elmo.tasks.settings import TaskSettings
from elmo.tasks.train import (
    ReportEpoch,
    TaskModel,
    TaskProgress,
    fit_task,
    report_nothing,
    saved_curve,
)
from elmo.tasks.vectors import Vectors

START = 3.0  # seconds that a process takes to begin
POLL = 0.5  # seconds between two looks at the checkpoints of a seed that another process trains
REPORTED = "reported.json"  # in a seed's work folder: the number of epochs passed to `report`


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
        with one_thread():  # as in a process of its own
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
    waiting, futures = deque(seeds), dict[int, Future[None]]()
    pool: ProcessPoolExecutor | None = None
    began = time.monotonic()
    with ExitStack() as stack:

        def submit(pool: ProcessPoolExecutor, count: int) -> None:
            with _interruptions_blocked():
                for _ in range(min(count, len(waiting))):
                    seed = waiting.popleft()
                    futures[seed] = pool.submit(_train_here, seed)

        def heard(folder: Path, kind: str, figures: dict[str, float]) -> None:
            nonlocal began, pool
            seed_seconds = (time.monotonic() - began) * training.settings.epochs
            _report_once(folder, figures, report)
            # A process pays off where what waits takes twice as long as its start.
            if pool is None and processes > 1 and seed_seconds * len(waiting) >= 2 * START:
                pool = stack.enter_context(_process_pool(training, processes))
                submit(pool, processes - 1)
            began = time.monotonic()

        for seed in seeds:
            report("seed", {"seed": seed})
            if pool is not None:
                submit(pool, len(waiting))
                _follow(futures[seed], training.folders[seed], report)
                continue
            waiting.popleft()
            training.run_locked(seed, partial(heard, training.folders[seed]))


def _follow(future: "Future[None]", folder: Path, report: ReportEpoch) -> None:
    """Report the epochs of a seed that another process trains, until it is done."""
    reported, done = 0, False
    while not done:
        done = bool(wait([future], timeout=POLL).done)
        curve = saved_curve(folder)
        for figures in curve[reported:]:
            _report_once(folder, figures, report)
        reported = max(reported, len(curve))
    future.result()


def _report_once(folder: Path, figures: dict[str, float], report: ReportEpoch) -> None:
    """Report an epoch, unless a run that was interrupted has reported it."""
    path, epoch, reported = folder / REPORTED, int(figures["epoch"]), 0
    with suppress(ElmoError, KeyError):  # none yet, or damaged: then reported twice
        reported = read_record(path, dict[str, Count])["epochs"]
    if epoch > reported:
        report("epoch", figures)
        write_json(path, {"epochs": epoch})


@contextmanager
def _process_pool(training: SeedTraining, processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool whose processes can train seeds; they end with the block and with this process,
    whatever they are doing."""
    context = get_context("spawn")
    listening, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(training, listening)
    )
    try:
        yield pool
    except BrokenProcessPool:
        raise ElmoError(
            "a process that trained a seed has ended (was there enough memory?); run the same "
            "command again to resume, with OMP_NUM_THREADS=1 to train one seed after another"
        ) from None
    except BaseException:
        held.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        listening.close()
        held.close()


@contextmanager
def _interruptions_blocked() -> Iterator[None]:
    """Let processes that are started in the block ignore Ctrl-C, which this one handles."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_training: SeedTraining | None = None  # of a process of the pool


def _begin(training: SeedTraining, listening: Connection) -> None:
    """Make a process of the pool ready; it ends when `listening` is closed at the other end."""
    global _training
    _training = training
    keep_freed_memory()
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(listening,), daemon=True).start()


def _end_with(listening: Connection) -> None:
    with suppress(EOFError, OSError):
        listening.recv()
    os._exit(1)


def _train_here(seed: int) -> None:
    assert _training is not None
    _training.run_locked(seed, report_nothing)
