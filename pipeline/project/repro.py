"""`elmo run`: `dvc repro` in this process, with one line for each stage and for each error."""

import argparse
import io
import logging
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TextIO

from elmo.errors import NotFound, did_you_mean

from ..settings import cluster as execution
from ..stages import load_stage
from . import outcome

USAGE = 254  # how DVC ends where its options are wrong


_SKIPPED = {"didn't change, skipping": "up to date", "is cached": "taken from DVC's cache"}


class _Lines(logging.Handler):
    """Keeps the first error of DVC as one line; prints its warnings, and which stages it skips.

    What else it says of a stage, the stage's own line says better.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.first = ""
        self.reported = False  # by a stage, on its own
        self.interrupted = False

    def emit(self, record: logging.LogRecord) -> None:
        """Hear of a record; raise an error of the system, to which DVC would add advice."""
        parts, error = [record.getMessage()], record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            raise error
        while error is not None:
            parts.append(str(error).rstrip("."))
            self.reported |= parts[-1].endswith(", exited with 1")
            self.interrupted |= parts[-1].endswith((", exited with -2", ", exited with -15"))
            error = error.__cause__
        line = " ".join(": ".join(filter(None, parts)).split())
        if record.levelno < logging.WARNING:
            skipped = re.match(r"Stage '([^']+)' (didn't change, skipping|is cached)", line)
            if skipped:
                print(
                    f"{skipped[1].replace('@', ' ')}: {_SKIPPED[skipped[2]]}",
                    file=self.out,
                    flush=True,
                )
        elif record.levelno < logging.ERROR:
            print(f"warning: {line}", file=sys.stderr)
        else:
            self.first = self.first or line


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
    lines = _Lines(sys.stdout)
    _listen(lines, instead_of=logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):  # it would print its help
            options = parse_args(words)
    except DvcParserError:
        return USAGE, lines.first
    if not options.dry:
        _check_cluster(options)
    before = signal.signal(signal.SIGTERM, _pass_on)
    try:
        if options.dry or options.interactive or options.verbose:
            code = main(words)
        else:
            _listen(lines, instead_of=logging.INFO)
            with redirect_stdout(io.StringIO()):  # its hints; what stages print does not pass here
                code = main(words)
            if code == 0 and not options.targets:
                _say_outcome()
    finally:
        signal.signal(signal.SIGTERM, before)
    if code == 252 or lines.interrupted:
        raise KeyboardInterrupt
    return code, "" if lines.reported else lines.first + _near(options.targets, lines.first)


def _near(targets: Sequence[str], error: str) -> str:
    """Return the stage that is meant where DVC's `error` is that one of `targets` is no stage."""
    unknown = [target for target in targets if f"Stage '{target}' not found" in error]
    if not unknown:
        return ""
    from dvc.repo import Repo

    with Repo() as repo:
        names = {stage.addressing for stage in repo.index.stages}
    return did_you_mean(unknown[0], sorted(names | {name.split("@")[0] for name in names}))


def _let_stages_hear_signals() -> None:
    """Let DVC start stages with bash, in whose place the stage's process then stands.

    Another `sh` stays between the two: it dies of the signal, and the stage goes on unseen.
    """
    shell, bash = Path(os.environ.get("SHELL") or "/bin/sh").name, shutil.which("bash")
    if shell in ("sh", "dash") and bash:
        os.environ["SHELL"] = bash


def _pass_on(*_: object) -> None:
    """Pass SIGTERM on to the stage that runs, which ends and says so; without one, end at once.

    A terminal sends SIGINT to both; DVC then waits for the stage as well.
    """
    import psutil

    stages = psutil.Process().children()
    if not stages:
        raise KeyboardInterrupt
    for stage in stages:
        with suppress(psutil.NoSuchProcess):
            stage.terminate()


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
    for line in outcome.outcome_lines(commands, ["dvc.lock", *sorted(tracked)]):
        print(line, flush=True)
