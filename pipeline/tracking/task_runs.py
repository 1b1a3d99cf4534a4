"""The MLflow run of a task's training, with settings, data and the curve of each seed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from elmo.errors import NotFound
from elmo.io.location import Location
from elmo.io.records import digest, sha256
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.example_files import list_files
from elmo.tasks.settings import TaskSettings

from .. import tracking
from ..settings.fingerprint import fingerprint


@dataclass(frozen=True)
class TaskRunParams:
    """The params that are logged to the MLflow run of a task."""

    task: str
    kind: str
    seeds: int
    settings: dict[str, Any]


@contextmanager
def prepare_task_run(
    task: str,
    kind: str,
    settings: TaskSettings,
    *,
    seeds: int,
    sources: Mapping[str, Path],
    work: Path,
) -> Iterator[Callable[[], tracking.Run]]:
    """Yield a function that opens the MLflow run of the training of `task` with all its seeds on
    its first call, and returns it; a training that is refused before that leaves no run.

    MLflow must answer now. `sources` are its labelled files by split, and "model" its model folder.
    The run of a training that was interrupted is resumed, by a record in the folder `work`.
    """
    params = TaskRunParams(task, kind, seeds, msgspec.to_builtins(settings))
    inputs = {name: source_digest(name, path) for name, path in sources.items()}
    folder = work.absolute() / fingerprint("tasks", RESULTS_VERSION, params, inputs)
    tracking.check_mlflow()
    with ExitStack() as stack:

        @cache
        def open_run() -> tracking.Run:
            folder.mkdir(parents=True, exist_ok=True)
            run = tracking.start_run(
                "tasks", params, inputs=inputs, sources=dict(sources), folder=Location(folder)
            )
            return stack.enter_context(run)

        yield open_run


def source_digest(name: str, path: Path) -> str:
    """Return the digest of a file or a folder of files; of a model folder if `name` is "model"."""
    if name == "model":
        return model_digest(path)
    if path.is_dir():
        files = list_files(path)
        return digest([[file.relative_to(path).as_posix(), sha256(file)] for file in files])
    if not path.is_file():
        raise NotFound(f"{path}: no such file; check the name")
    return sha256(path)
