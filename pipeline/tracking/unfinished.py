"""Unfinished stages, and records that MLflow has not been sent yet, as `elmo work` lists them.

MLflow's runs and versions are in `mlflow ui`, the project's experiments in
`dvc exp show --only-changed`.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from elmo.errors import ElmoError

from .. import tracking


@dataclass(frozen=True)
class StageInProgress:
    """A stage that was interrupted: its work folder, and when it began, in seconds since 1970."""

    stage: str
    folder: str
    began: float


@dataclass(frozen=True)
class UnfinishedWork:
    """The interrupted stages below the work folder `folder`, and the records that were not sent.

    `unsent` is how many wait for MLflow in each spool, by its folder; those with none are left out.
    """

    folder: str
    work: list[StageInProgress]
    unsent: dict[str, int]


def find_unfinished(folder: Path, *, send: bool) -> UnfinishedWork:
    """Return the interrupted stages below `folder`, the stages' work folder, and the records that
    MLflow has not got: those below `folder`, and those of work at URLs, which wait on this machine.

    With `send`, the records are sent first.
    """
    if folder.exists() and not folder.is_dir():
        raise ElmoError(f"{folder}: is no folder; pass the one that the stages got as --work")
    left = {
        str(spool): tracking.send_unsent(spool) if send else tracking.count_unsent(spool)
        for spool in (*sorted(folder.glob("*/unsent")), *sorted(tracking.spools_of_urls()))
    }
    work = []
    for path in sorted(folder.glob("*/*/mlflow.json")):
        with suppress(FileNotFoundError):  # its stage has just ended
            began = path.stat().st_mtime
            work.append(StageInProgress(path.parent.parent.name, str(path.parent), began))
    return UnfinishedWork(
        str(folder), work, {spool: count for spool, count in left.items() if count}
    )


def unfinished_lines(found: UnfinishedWork) -> Iterator[str]:
    """Yield the lines that `elmo work` prints."""
    yield f"work in progress in {found.folder}:" + ("" if found.work else " none")
    for work in found.work:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(work.began))
        yield f"  {work.stage} {Path(work.folder).name}  {began}"
    for spool, count in found.unsent.items():
        yield f"  {count} records in {spool} wait for MLflow; to send them: elmo work --send"
