"""The seeds of a task, trained side by side: each on one thread, some in processes of their own.

A seed's training depends on no other and leaves its result in its work folder, so where it ran
changes nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from elmo.io.locks import work_folder_lock
from elmo.nn.processes import helper_process
from elmo.nn.threads import one_thread
from elmo.tasks.model import TaskModel
from elmo.tasks.settings import TaskSettings
from elmo.tasks.train import (
    ReportEpoch,
    TaskProgress,
    fit_task,
    report_nothing,
)
from elmo.tasks.vectors import Vectors

PROCESS_START_SECONDS = 3.0  # seconds that a process takes to begin; a shorter training has none


@dataclass(frozen=True)
class SeedTraining:
    """All that the training of each seed of a task needs; it can be pickled.

    `make_network(seed=k)` returns the untrained network of seed k; `train`, `dev` and `vectors` are
    those of `fit_task`, and `folders` the seeds' work folders.
    """

    make_network: Callable[..., TaskModel]
    train: Sequence[Any]
    dev: Sequence[Any]
    vectors: Vectors | None
    settings: TaskSettings
    folders: Mapping[int, Path]

    def run(self, seed: int, report: ReportEpoch) -> tuple[TaskModel, TaskProgress]:
        """Train and return the network of a seed; return at once if its training has finished.

        `report("epoch", figures)` is called after each epoch, and if a training is resumed, also
        for its earlier epochs.
        """
        with one_thread():  # as in a process of its own
            network = self.make_network(seed=seed)
        progress = fit_task(
            network,
            self.train,
            self.dev,
            vectors=self.vectors,
            settings=self.settings,
            seed=seed,
            checkpoints_folder=self.folders[seed],
            report=report,
        )
        return network, progress

    def train_under_lock(self, seed: int, report: ReportEpoch) -> None:
        """Train a seed, so that its work folder holds the result; nobody else may work there."""
        with work_folder_lock(self.folders[seed]):
            self.run(seed, report)


def train_seeds(
    training: SeedTraining, seeds: Sequence[int], report: ReportEpoch, *, processes: int
) -> None:
    """Train each of the seeds, so that their work folders hold the results.

    At most `processes` seeds are trained at once, one of them in this process. `report` is called
    in the order of the seeds: with `seed` before each and `epoch` after each epoch; for a seed of
    another process, once that process has ended. If another process ends early, its seed is trained
    here, so that an error is raised here too.
    """
    for start in range(0, len(seeds), processes):
        _train_together(training, seeds[start : start + processes], report)


def _train_together(training: SeedTraining, seeds: Sequence[int], report: ReportEpoch) -> None:
    start = time.monotonic()
    helpers: dict[int, BaseProcess] = {}
    with ExitStack() as stack:

        def report_epoch(position: int, kind: str, figures: dict[str, float]) -> None:
            report("epoch", figures)
            if not helpers and time.monotonic() - start >= PROCESS_START_SECONDS:
                for seed in seeds[position + 1 :]:
                    helpers[seed] = stack.enter_context(
                        helper_process(_train_in_process, training, seed)
                    )

        for position, seed in enumerate(seeds):
            report("seed", {"seed": seed})
            if seed in helpers:
                helpers[seed].join()
            training.train_under_lock(seed, partial(report_epoch, position))


def _train_in_process(training: SeedTraining, seed: int) -> None:
    """Train a seed in a process of its own. Its errors are not shown: the process that started it
    trains the seed again and raises them."""
    with suppress(Exception):
        training.train_under_lock(seed, report_nothing)
