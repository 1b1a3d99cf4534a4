"""Unfinished stages, as `elmo work` lists them.

MLflow's runs and versions are in `mlflow ui`, the project's experiments in
`dvc exp show --only-changed`.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elmo.errors import ElmoError


@dataclass(frozen=True)
class StageInProgress:
    """A stage that was interrupted: its work folder, and when it began, in seconds since 1970."""

    stage: str
    folder: str
    began: float


@dataclass(frozen=True)
class UnfinishedWork:
    """The interrupted stages below the work folder `folder`."""

    folder: str
    work: list[StageInProgress]


def find_unfinished(folder: Path) -> UnfinishedWork:
    """Return the interrupted stages below `folder`, the stages' work folder."""
    if folder.exists() and not folder.is_dir():
        raise ElmoError(f"{folder}: is no folder; pass the one that the stages got as --work")
    work = []
    for path in sorted(folder.glob("*/*/mlflow.json")):
        with suppress(FileNotFoundError):  # its stage has just ended
            began = path.stat().st_mtime
            work.append(StageInProgress(path.parent.parent.name, str(path.parent), began))
    return UnfinishedWork(str(folder), work)


def unfinished_lines(found: UnfinishedWork) -> Iterator[str]:
    """Yield the lines that `elmo work` prints."""
    yield f"work in progress in {found.folder}:" + ("" if found.work else " none")
    for work in found.work:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(work.began))
        yield f"  {work.stage} {Path(work.folder).name}  {began}"
