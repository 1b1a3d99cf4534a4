"""Train the seeds of a task in parallel: each on one thread, in this process or in another. A
seed's training depends on no other seed and leaves its result in its work folder, so it does not
matter in which process it ran.
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
from elmo.tasks.train import ReportEpoch, TaskProgress, fit_task, report_nothing
from elmo.tasks.vectors import Vectors

PROCESS_START_SECONDS = 3.0  # a process takes about this long to start


@dataclass(frozen=True)
class SeedTraining:
    """The arguments of training each seed of a task; it can be pickled.

    `make_network(seed=k)` returns the untrained network of seed k; `train`, `dev` and `vectors` are
    as in `fit_task`, and `folders` are the seeds' work folders.
    """

    make_network: Callable[..., TaskModel]
    train: Sequence[Any]
    dev: Sequence[Any]
    vectors: Vectors | None
    settings: TaskSettings
    folders: Mapping[int, Path]

    def run(self, seed: int, report: ReportEpoch) -> tuple[TaskModel, TaskProgress]:
        """Train and return the network of a seed; return at once if its training has finished.

        `report("epoch", figures)` is called after each epoch; if training resumes, also for the
        earlier epochs.
        """
        with one_thread():  # as in a separate process
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
        """Train a seed into its work folder, which is locked meanwhile."""
        with work_folder_lock(self.folders[seed]):
            self.run(seed, report)


def train_seeds(
    training: SeedTraining, seeds: Sequence[int], report: ReportEpoch, *, processes: int
) -> None:
    """Train the seeds; the results are in their work folders.

    At most `processes` seeds are trained at once, one of them in this process. `report` is called
    in the order of the seeds: with `seed` before each seed and `epoch` after each epoch. The epochs
    of a seed in another process are reported when that process has ended. If the process fails, its
    seed is trained here, so that the error is raised here.
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
    """Train a seed in another process. Errors are not shown here: the process that started this one
    trains the seed again and raises them."""
    with suppress(Exception):
        training.train_under_lock(seed, report_nothing)
