"""`elmo`, `python -m elmo_pipeline`, and in the repository `python -m pipeline`."""

import gc
import io
import os
import sys
from contextlib import suppress
from typing import Any

from . import RUN_VARIABLE

# A thread that is done with its part of a product waits for the others. OpenMP lets it spin for
# milliseconds, longer than a scheduler leaves a core to one process: beside a busy process the
# threads then take turns at waiting for each other. After this many rounds, some hundreds of
# microseconds, it sleeps. Fewer cost training alone a third of its speed where waking is slow.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"
# Importing torch and MLflow makes many objects that stay. Python looks for garbage among them after
# each 700 new ones, and once more as it ends: a quarter of the processor time of `elmo run` with
# nothing to do (6.6 to 7.2 s before, 5.0 to 5.1 s after; 2 cores, 2026-11-25).
GC_THRESHOLD = 5000


def main() -> None:
    """Run the command line, or say what to install for it."""
    if not {SPIN_VARIABLE, "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ[SPIN_VARIABLE] = SPIN_COUNT  # read as torch is imported, here and in workers
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
        gc.freeze()  # what is left goes with the process


def open_streams() -> None:
    """Open the null device in place of each closed standard stream; otherwise the next file that is
    opened gets its number, and receives what a library prints. Errors may be lost."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # of the lowest free number: that stream's
    errors, encoding = _SafeStderr(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding
    sys.stderr = io.TextIOWrapper(errors, encoding, "backslashreplace", write_through=True)


class _SafeStderr(io.FileIO):
    """Standard error that passes over a full disk or a terminal that is gone: no work ends because
    its progress can't be shown."""

    def write(self, data: Any) -> int:
        """Write bytes; return their number."""
        with suppress(OSError):
            return super().write(data)
        return len(data)


if __name__ == "__main__":
    main()
