"""MLflow runs of a task, one for each seed, with settings, data and curve."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elmo.errors import NotFound
from elmo.io.location import Location
from elmo.io.records import digest, sha256
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.example_files import files_below
from elmo.tasks.settings import TaskSettings

from .. import tracking
from ..settings.fingerprint import fingerprint


@dataclass(frozen=True)
class TaskRunParams:
    """The params that are logged to the MLflow run of one seed of a task."""

    task: str
    kind: str
    seed: int
    settings: dict[str, Any]


@dataclass(frozen=True)
class TaskRuns:
    """The MLflow runs of the training of the task `task`, one for each seed, which are opened here.

    `sources` are its labelled files by split, and "model" its model folder. With a folder `work`,
    the run of an interrupted training is resumed, and records that MLflow can't take now wait
    there.
    """

    task: str
    kind: str
    settings: TaskSettings
    sources: Mapping[str, Path]
    work: Path | None = None

    @contextmanager
    def open(self, seed: int) -> Iterator[tracking.Run]:
        """Open the MLflow run of a seed for the block, and yield it."""
        params, inputs, folder = self._seed_record(seed)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        with tracking.run(
            "tasks",
            params,
            inputs=inputs,
            sources=dict(self.sources),
            folder=None if folder is None else Location(folder),
        ) as log:
            yield log

    def forget_resumable(self, seeds: Iterable[int]) -> None:
        """Delete what these seeds' runs would be resumed from: a later `open` begins new ones.

        It is called when all seeds are trained; the runs in MLflow stay as they are.
        """
        for seed in seeds:
            folder = self._seed_record(seed)[2]
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _seed_record(self, seed: int) -> tuple[TaskRunParams, dict[str, str], Path | None]:
        """A seed's params, the digests of what it reads, and where its run is kept."""
        params = TaskRunParams(self.task, self.kind, seed, msgspec.to_builtins(self.settings))
        inputs = {name: source_digest(name, path) for name, path in self.sources.items()}
        if self.work is None:
            return params, inputs, None
        return (
            params,
            inputs,
            self.work.absolute() / fingerprint("tasks", RESULTS_VERSION, params, inputs),
        )

    def run_opener(self, stack: ExitStack) -> Callable[[int], Callable[..., None]]:
        """Return a function that opens a seed's run and returns the function that logs metrics.

        `stack` keeps the run open until it is closed; each call closes the run before.
        """

        def begin(seed: int) -> Callable[..., None]:
            stack.close()
            return stack.enter_context(self.open(seed)).log_metrics

        return begin


def source_digest(name: str, path: Path) -> str:
    """Return the digest of a file or a folder of files; of a model folder if `name` is "model"."""
    if name == "model":
        return model_digest(path)
    if path.is_dir():
        files = files_below(path)
        return digest([[file.relative_to(path).as_posix(), sha256(file)] for file in files])
    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    return sha256(path)
