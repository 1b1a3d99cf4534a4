"""Commands in processes of their own, that may be killed."""

import os
import sys
import time
from pathlib import Path

from tests.forked import forked
from tests.pipeline import here


class Command:
    """A command in a process of its own, begun in `folder`."""

    def __init__(self, folder: Path, arguments: list[str], *, said: Path) -> None:
        self._said = said
        self._process = forked(_command, str(folder), arguments, str(said), dict(os.environ))
        while not said.exists() and self._process.is_alive():
            time.sleep(0.002)  # until the process is there: the first one imports for seconds
        self.began = time.monotonic()

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code; None where it is still at work after `seconds`."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        """By SIGKILL, unless it has ended."""
        self._process.kill()
        self._process.join()

    def said(self) -> str:
        """What it wrote to standard output and standard error."""
        return self._said.read_text(encoding="utf-8", errors="replace")


def _command(folder: str, arguments: list[str], said: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    opened = os.open(said + ".new", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(opened, number)
    os.rename(said + ".new", said)
    sys.argv = ["elmo", *arguments]
    from pipeline.cluster import workers
    from pipeline.commands import cli

    workers.map_actors, workers.map_tasks = here.map_actors, here.map_tasks
    cli.run_cli()
