"""Our lines for what DVC logs while `elmo run` runs it: stages that are skipped, and errors."""

import logging
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import psutil

from elmo.errors import ElmoError, did_you_mean

from ..settings import strict_yaml

_SKIPPED = {"didn't change, skipping": "up to date", "is cached": "taken from DVC's cache"}


class DvcLines(logging.Handler):
    """A handler of what DVC logs: it keeps the first error as one line, and prints warnings.

    Which stages are skipped goes to `out`. What else DVC says of a stage, the stage's own line says
    better.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self.out = out
        self.first = ""
        self.reported = False  # by a stage, on its own
        self.interrupted = False
        self.stopping = False  # a signal was passed on to the stage that runs

    def emit(self, record: logging.LogRecord) -> None:
        """Print or keep what DVC logs; raise an error of the system, to which DVC would add advice.

        It is called by `logging`.
        """
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


def meant_stage(targets: Sequence[str], error: str) -> str:
    """Return the end of a message that suggests the stage that was meant, or an empty text.

    `targets` are the stages that were asked for; DVC's `error` may be that one of them is no stage.
    """
    unknown = [target for target in targets if f"Stage '{target}' not found" in error]
    if not unknown:
        return ""
    from dvc.repo import Repo

    with Repo() as repo:
        names = {stage.addressing for stage in repo.index.stages}
    return did_you_mean(unknown[0], sorted(names | {name.split("@")[0] for name in names}))
