"""`elmo`, `python -m elmo_pipeline`, and in the repository `python -m pipeline`."""

import gc
import io
import os
import sys
from contextlib import suppress
from typing import Any

from . import RUN_VARIABLE

# A thread that has finished its share of a matrix product waits for the others. OpenMP lets it spin
# for milliseconds, longer than a scheduler gives one process a core, so next to a busy process the
# threads take turns waiting for each other. With this count, a thread spins for some hundreds of
# microseconds, then sleeps. A lower count made training a third slower on machines that wake
# threads slowly.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"
# Importing torch and MLflow creates many lasting objects. By default Python searches them for
# garbage after every 700 new objects, and once more at exit: a quarter of the processor time of an
# `elmo run` with nothing to do (6.6 to 7.2 s before, 5.0 to 5.1 s after; 2 cores, 2026-11-25).
GC_THRESHOLD = 5000


def main() -> None:
    """Run the command line, or say which package it needs."""
    if not {SPIN_VARIABLE, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPIN_VARIABLE] = SPIN_COUNT  # read when torch is imported, here and in workers
    gc.set_threshold(GC_THRESHOLD)
    open_streams()
    try:
        try:
            import click  # noqa: F401
        except ModuleNotFoundError:
            sys.exit(
                "error: the elmo command needs the pipeline; run: "
                "pip install 'elmo-pipeline[pipeline]'"
            )
        from .commands.cli import run_cli
    except KeyboardInterrupt:
        sys.exit(1 if RUN_VARIABLE in os.environ else "error: interrupted")
    try:
        run_cli()
    finally:
        gc.freeze()  # the process ends, so nothing needs to be freed


def open_streams() -> None:
    """Open the null device in place of each closed standard stream; otherwise the next file opened
    would receive what libraries print. Make standard error drop what it cannot write."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # gets the lowest free number: this stream's
    errors, encoding = _SafeStderr(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding
    sys.stderr = io.TextIOWrapper(errors, encoding, "backslashreplace", write_through=True)


class _SafeStderr(io.FileIO):
    """Standard error that ignores a full disk or a closed terminal, so that no work ends because
    its progress cannot be shown."""

    def write(self, data: Any) -> int:
        """Write bytes; return their number."""
        with suppress(OSError):
            return super().write(data)
        return len(data)


if __name__ == "__main__":
    main()
