"""Finished pieces of a stage's work, kept beside its output until the stage is done.

A stage that was killed reuses them when it is started again. Each piece is named by a digest of
everything it depends on, so one that no longer fits is never reused.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmo.io.atomic import LOCK, locked, sweep_beside
from elmo.io.location import Location


@contextmanager
def work_folder(parent: Location, stage: str, out: Location) -> Iterator[Location]:
    """Yield the folder in `parent` of a stage that writes `out`; on a disk, for one process at a
    time.

    It is removed on success, and on failure when no piece was finished. What a killed process left
    half-written beside `out` is removed first.
    """
    work = parent / f"{stage}-{out.last}"
    if work.local is None:
        yield work
        work.remove()
        return
    with locked(work.local):
        if out.local is not None:
            sweep_beside(out.local)
        work.sweep()
        yield work
        _remove(work.local)


def discard(work: Location) -> None:
    """Delete the finished pieces: no later run can use them."""
    work.delete_all(name for name in work.names() if name != LOCK)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        pass  # it holds other work
