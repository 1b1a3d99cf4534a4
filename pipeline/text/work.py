"""Finished pieces of a stage's work, kept beside its output until the stage is done.

A stage that was killed reuses them when it is started again. Each piece is named by a digest of
everything it depends on, so one that no longer fits is never reused.
"""

import glob
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elmo.files import LOCK, locked


@contextmanager
def work_folder(runs: Path, stage: str, out: Path) -> Iterator[Path]:
    """Yield the folder in `runs` of a stage that writes `out`, for one process at a time.

    It is removed on success, and on failure when no piece was finished. What a killed process left
    half-written beside `out` is removed first.
    """
    folder = runs.absolute() / f"{stage}-{out.name}"
    with locked(folder):
        for unfinished in out.parent.glob(f".{glob.escape(out.name)}.{'[0-9a-f]' * 8}"):
            shutil.rmtree(unfinished)  # named by `new_folder`
        try:
            yield folder
        except BaseException:
            if {path.name for path in folder.iterdir()} == {LOCK}:
                _remove(folder)
            raise
        _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.rmdir()
    except OSError:
        pass  # it holds other work
