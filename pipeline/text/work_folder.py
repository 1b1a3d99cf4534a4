"""Keep the finished pieces of a stage's work until the stage is done, so that it can resume.

Each piece is named by a digest of everything it depends on, so outdated ones are never used.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from elmo.io.atomic import sweep_hidden_folders
from elmo.io.location import Location
from elmo.io.locks import LOCK_FILE, work_folder_lock


@contextmanager
def work_folder(parent: Location, stage: str, out: Location) -> Iterator[Location]:
    """Yield the folder below `parent` where a stage that writes `out` keeps its finished pieces.

    On a disk, it is locked, so only one process uses it. It is deleted on success, and on failure
    if no piece was finished. Partial files of a killed process beside `out` are deleted first.
    """
    # At a URL, the name of the output's folder changes with each run.
    work = parent / (stage if out.local is None else f"{stage}-{out.folder_name}")
    if work.local is None:
        yield work
        work.remove()
        return
    with work_folder_lock(work.local):
        if out.local is not None:
            sweep_hidden_folders(out.local)
        yield work
        shutil.rmtree(work.local, ignore_errors=True)
        with suppress(OSError):  # it holds other work
            work.local.parent.rmdir()


def discard_pieces(work: Location) -> None:
    """Delete the finished pieces in `work`, which no later run can use."""
    work.delete_all(name for name in work.names() if name != LOCK_FILE)
