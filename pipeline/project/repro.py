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
from types import SimpleNamespace
from typing import Any, TextIO

import psutil

from elmo.errors import ElmoError, NotFound, did_you_mean

from ..settings import cluster as execution
from ..settings import params, strict_yaml
from ..stages import load_stage
from . import outcome

USAGE = 254  # how DVC ends where its options are wrong
_STOPS = (signal.SIGTERM, signal.SIGINT)

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
        self.stopping = False  # a signal was passed on to the stage that runs

    def emit(self, record: logging.LogRecord) -> None:
        """Hear of a record; raise an error of the system, to which DVC would add advice."""
        from dvc.lock import LockError

        parts, error = [record.getMessage()], record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            raise error
        while error is not None:
            parts.append(str(error).rstrip("."))
            self.reported |= parts[-1].endswith(", exited with 1")
            self.interrupted |= parts[-1].endswith((", exited with -2", ", exited with -15"))
            if isinstance(error, LockError):
                self.first = self.first or _other_run(str(error))
            error = error.__cause__
        line = " ".join(": ".join(filter(None, parts)).split())
        if record.levelno < logging.WARNING:
            if self.stopping and line.startswith("Running stage"):  # one had ended well by then
                raise KeyboardInterrupt
            skipped = re.match(r"Stage '([^']+)' (didn't change, skipping|is cached)", line)
            if skipped:
                print(
                    f"{skipped[1].replace('@', ' ')}: {_SKIPPED[skipped[2]]}",
                    file=self.out,
                    flush=True,
                )
        elif record.levelno < logging.ERROR:
            if not line.endswith("Auto removed it from the lock file."):  # of a run that was killed
                print(f"warning: {line}", file=sys.stderr)
        else:
            self.first = self.first or _said_of_yaml(line)


def _said_of_yaml(line: str) -> str:
    """Return what is wrong with a file of YAML that DVC can't read, or the line as it is."""
    wrong = re.match(r"(?:unable to read: )?'([^']+)'(, YAML| validation failed)", line)
    if not wrong:
        return line
    file, lost = Path(wrong[1]), wrong[1].endswith("dvc.lock")
    marks = b"\n<<<<<<< " in b"\n" + file.read_bytes()
    if marks or lost:
        what = "holds the marks of a git merge" if marks else "is damaged"
        remedy = "delete it: what is unchanged comes from DVC's cache" if lost else "settle it"
        return f"{file}: {what}; {remedy}, and run the same command again"
    try:
        strict_yaml.parse_nodes(file)
    except ElmoError as error:
        return str(error)
    return line


def _other_run(said: str) -> str:
    """Return a line about the run that has a lock, of which DVC has said `said`."""
    if found := re.search(r"\(PID (\d+)\): (.*)", said):
        pid, command = found.groups()
        if not _runs(int(pid), command):
            return (
                f".dvc/tmp/rwlock: names process {pid}, which is no run any more; delete that "
                "file, and run the same command again"
            )
        which = f" (PID {pid})"
    else:
        which = ""
        with suppress(OSError):  # where the project is a part of DVC's
            which = f" (PID {Path('.dvc/tmp/lock').read_text(encoding='ascii').strip()})"
    return f"another run{which} is at work in this project; wait for it, or stop it"


def _runs(pid: int, command: str) -> bool:
    """Tell whether a process runs a command; another program may have its number by now."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's
        return True
    return bool(words) and command.endswith(words[-1])


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


def _pass_signals_on(lines: _Lines) -> dict[signal.Signals, Any]:
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
