"""Finished pieces of a stage's work, kept beside its output until the stage is done.

A stage that was killed reuses them when it is started again. Each piece is named by a digest of
everything it depends on, so one that no longer fits is never reused.
"""

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmo.io.atomic import LOCK, locked
from elmo.io.folders import absolute, name_of
from elmo.io.location import Folder, Location


@contextmanager
def work_folder(parent: Folder, stage: str, out: Folder) -> Iterator[Location]:
    """Yield the folder in `parent` of a stage that writes `out`; on a disk, for one process at a
    time.

    It is removed on success, and on failure when no piece was finished. What a killed process left
    half-written beside `out` is removed first.
    """
    work = Location(absolute(parent)) / f"{stage}-{name_of(out)}"
    if work.local is None:
        yield work
        work.remove()
        return
    with locked(work.local):
        beside = Path(out).parent
        for unfinished in beside.glob(f".{glob.escape(name_of(out))}.{'[0-9a-f]' * 8}"):
            shutil.rmtree(unfinished)  # named by `new_folder`
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
