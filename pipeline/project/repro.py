"""`elmo run`: `dvc repro` in this process, with one line for each stage and for each error."""

import argparse
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from elmo.errors import NotFound

from ..settings import cluster as execution
from ..settings import params
from ..stages import load_stage
from . import outcome
from .dvc_lines import DvcLines, meant_stage

USAGE = 254  # how DVC ends where its options are wrong
_STOPS = (signal.SIGTERM, signal.SIGINT)


def repro(arguments: Sequence[str]) -> tuple[int, str]:
    """Run `dvc repro ARGUMENTS` in the current folder; return the exit code and an error line.

    The line is empty where a stage has printed the error already.
    """
    if not Path("dvc.yaml").is_file():
        raise NotFound("dvc.yaml: no such file; go to a project's folder, or make one: elmo init")
    path = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ.get("PATH")]))
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    os.environ["PATH"] = path
    _let_stages_hear_signals()
    from dvc.cli import DvcParserError, main, parse_args

    words = ["repro", *arguments]
    lines = DvcLines(sys.stdout)
    _listen(lines, instead_of=logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):  # it would print its help
            options = parse_args(words)
    except DvcParserError:
        return USAGE, lines.first
    if not options.dry:
        _check_cluster(options)
    before = _pass_signals_on(lines)
    try:
        if options.interactive or options.verbose:
            code = main(words)
        else:
            if not options.dry:
                _listen(lines, instead_of=logging.INFO)
            with redirect_stdout(io.StringIO()):  # its hints; what stages print does not pass here
                code = main(words)
            if code == 0 and not options.targets and not options.dry:
                _say_outcome()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if code == 252 or lines.interrupted:
        raise KeyboardInterrupt
    return code, "" if lines.reported else lines.first + meant_stage(options.targets, lines.first)


def _let_stages_hear_signals() -> None:
    """Let DVC start stages with bash, in whose place the stage's process then stands.

    Another `sh` stays between the two: it dies of the signal, and the stage goes on unseen.
    """
    shell, bash = Path(os.environ.get("SHELL") or "/bin/sh").name, shutil.which("bash")
    if shell in ("sh", "dash") and bash:
        os.environ["SHELL"] = bash


def _pass_signals_on(lines: DvcLines) -> dict[signal.Signals, Any]:
    """Pass SIGTERM and SIGINT on to the stage that runs; return the handlers before.

    The stage ends and says so; where none runs, this process ends at once. A signal that is ignored
    here stays so, as SIGINT in the background of a script.
    """
    from dvc.stage import run

    def pass_on(number: int, _: object) -> None:
        stages = [one for one in psutil.Process().children() if _lives(one)]
        if not stages:
            raise KeyboardInterrupt
        lines.stopping = True
        told = number == signal.SIGINT and _in_foreground()
        for stage in stages:
            with suppress(psutil.NoSuchProcess):
                # For our own stages both signals are one stop; for others they may not be.
                if not told or stage.cmdline()[1:3] == ["-m", "elmo_pipeline"]:
                    stage.terminate()

    # DVC would ignore SIGINT while a stage runs: None is no handler that it could restore.
    run.signal = SimpleNamespace(SIGINT=0, SIG_IGN=0, signal=lambda number, handler: None)
    heard = [one for one in _STOPS if signal.getsignal(one) != signal.SIG_IGN]
    return {number: signal.signal(number, pass_on) for number in heard}


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _in_foreground() -> bool:
    """Tell whether a terminal sends SIGINT to this process, and so to the stage as well."""
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _check_cluster(options: argparse.Namespace) -> None:
    """Refuse what a cluster that is named can't do of the stages that are to run."""
    cluster = execution.load(Path("cluster.yaml"))[0]
    if not cluster.address:
        return
    stages = _changed(options)
    if any(load_stage(name).cluster for name in stages):
        from ..cluster import run_check

        run_check.check_run(cluster, stages)


def _changed(options: argparse.Namespace) -> set[str]:
    """Return which of our stages are asked for, or needed by those, and not up to date.

    One that is may run all the same, where one before it makes another result.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    found = set()
    with suppress(DvcException), Repo() as repo, repo.lock:  # `main` meets it too, and says it
        for target in options.targets or ["dvc.yaml"]:
            for stage in repo.stage.collect(target, with_deps=not options.single_item):
                if options.force or stage.changed():
                    found.add(outcome.stage_of(str(stage.cmd)))
    return found - {""}


def _listen(handler: logging.Handler, *, instead_of: int) -> None:
    """Let a handler hear what DVC logs, and DVC's own of a level no more."""
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(name)
        for own in [one for one in logger.handlers if one.level == instead_of]:
            logger.removeHandler(own)
        logger.addHandler(handler)
    handler.setLevel(instead_of)


def _say_outcome() -> None:
    """Print what the stages have made, what it scored, and what to do next."""
    from dvc.repo import Repo

    with Repo() as repo:
        stages = list(repo.index.stages)
        tracked = {
            Path(str(out)).parts[0] for stage in stages for out in stage.outs if not out.use_cache
        }
        commands = [str(stage.cmd) for stage in stages]
    ours = {outcome.stage_of(command) for command in commands}
    model = params.load(Path("params.yaml")).pretrain.model if "pretrain" in ours else ""
    files = ["dvc.lock", *sorted(tracked)]
    for line in outcome.outcome_lines(commands, files, started_from=model):
        print(line, flush=True)
