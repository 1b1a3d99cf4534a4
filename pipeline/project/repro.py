"""`elmo run`: DVC in this process, with its errors as one line."""

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from elmo.errors import NotFound

USAGE = 254  # how DVC ends where its options are wrong


class _Errors(logging.Handler):
    """Keeps the first error of DVC as one line; prints its warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""
        self.reported = False  # by a stage, on its own

    def emit(self, record: logging.LogRecord) -> None:
        """Hear of a record; raise an error of the system, to which DVC would add advice."""
        parts, error = [record.getMessage()], record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            raise error
        while error is not None:
            parts.append(str(error).rstrip("."))
            self.reported |= parts[-1].endswith((", exited with 1", ", exited with 2"))
            error = error.__cause__
        line = " ".join(": ".join(filter(None, parts)).split())
        if record.levelno < logging.ERROR:
            print(f"warning: {line}", file=sys.stderr)
        else:
            self.first = self.first or line


def repro(arguments: Sequence[str]) -> tuple[int, str]:
    """`dvc repro ARGUMENTS` in the project of the current folder: its exit code, and what is wrong,
    where no stage has reported it."""
    if not Path("dvc.yaml").is_file():
        raise NotFound("dvc.yaml: no such file; go to a project's folder, or make one: elmo init")
    path = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ.get("PATH")]))
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    os.environ["PATH"] = path
    from dvc.cli import DvcParserError, main, parse_args

    errors = _Errors()
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logger = logging.getLogger(name)
        for handler in [one for one in logger.handlers if one.level == logging.WARNING]:
            logger.removeHandler(handler)
        logger.addHandler(errors)
    words = ["repro", *arguments]
    try:
        with redirect_stdout(io.StringIO()):  # it would print its help
            parse_args(words)
    except DvcParserError:
        return USAGE, errors.first
    code = main(words)
    if code == 252:
        raise KeyboardInterrupt
    return code, "" if errors.reported else errors.first
