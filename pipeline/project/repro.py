"""`elmo run`: runs `dvc repro` in a separate process and prints the lines that end a run."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from elmo.errors import NotFound
from elmo.settings import list_stop_signals

from .. import RUN_VARIABLE
from ..tracking.client import configured_uri
from .outcome import outcome_lines

_DVC_PROGRAM = """
import logging, sys
from {package}.__main__ import open_streams
open_streams()
logging.raiseExceptions = False  # no traceback if standard output is full
from dvc.cli import main
sys.exit(main(sys.argv[1:]))
"""


def repro(arguments: Sequence[str]) -> int:
    """Run `dvc repro ARGUMENTS` in the current folder; return its exit code.

    DVC and the stages print their errors themselves. After a run of the whole project, print the
    three lines of `outcome_lines`.
    """
    if not Path("dvc.yaml").is_file():
        raise NotFound("dvc.yaml: no such file; change to a project folder, or run: elmo init")
    if not any((folder / ".dvc").is_dir() for folder in [Path.cwd(), *Path.cwd().parents]):
        raise NotFound(".dvc: no such folder here or above; run: dvc init (without git: --no-scm)")
    configured_uri()  # refuses a folder where MLflow cannot have its database
    path = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ.get("PATH")]))
    os.environ |= {"DVC_NO_ANALYTICS": "1", "PATH": path}
    targets = [word for word in arguments if not word.startswith("-")]
    program = _DVC_PROGRAM.format(package=__name__.split(".")[0])
    code = _run_in_group([sys.executable, "-c", program, "repro", *arguments])
    if code == 0 and not targets and "--dry" not in arguments:
        for line in outcome_lines():
            print(line, flush=True)
    return code


def _run_in_group(command: Sequence[str]) -> int:
    """Run a command in a new process group; return its exit code.

    A signal that stops this process is passed on to the group as SIGINT, so that DVC waits for its
    stage and the stage saves its work. `KeyboardInterrupt` is raised once the group has ended.
    """
    process: subprocess.Popen[bytes] | None = None
    is_stopped = False

    def forward_signal(number: int = 0, frame: FrameType | None = None) -> None:
        nonlocal is_stopped
        is_stopped = True
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)

    handlers = {signum: signal.signal(signum, forward_signal) for signum in list_stop_signals()}
    try:
        process = subprocess.Popen(
            command,
            env=os.environ | {RUN_VARIABLE: "1"},
            process_group=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        if is_stopped:
            forward_signal()
        code = process.wait()
        while is_stopped and _is_alive(process.pid):  # a shell may die before its stage
            time.sleep(0.1)
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    if is_stopped:
        raise KeyboardInterrupt
    return code


def _is_alive(group_id: int) -> bool:
    """Tell whether any process of a process group is still running."""
    for process in psutil.process_iter(["status"]):
        with suppress(OSError):
            if os.getpgid(process.pid) == group_id:
                if process.info["status"] != psutil.STATUS_ZOMBIE:
                    return True
    return False
