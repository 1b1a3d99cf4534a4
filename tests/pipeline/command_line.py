"""The command line in this process: a new one takes seconds to import what it needs."""

import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from elmo.settings import list_stop_signals
from pipeline.commands import cli

ROOT = Path(__file__).resolve().parents[2]
_CONTEXT = click.Context(cli.cli)
COMMANDS = {
    name: command
    for name in cli.cli.list_commands(_CONTEXT)
    if (command := cli.cli.get_command(_CONTEXT, name))
}


def every_command(commands: Mapping[str, click.Command]) -> Iterator[tuple[str, click.Command]]:
    """Each of these commands and of those of its groups."""
    for name, command in commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {one}", inner) for one, inner in command.commands.items())


def elmo(*arguments: object, stdin: bytes = b"", cwd: Path = ROOT) -> tuple[int, str, str]:
    """The exit code, the output and the errors of `elmo ARGUMENTS`."""
    stops = {one: signal.getsignal(one) for one in list_stop_signals()}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as own:
        out, err = (Path(own) / name for name in ("out", "err"))
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["elmo", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(_Input(stdin)))
        with out.open("w") as sys_out, err.open("w") as sys_err:  # files: an error may dup them
            patch.setattr(sys, "stdout", sys_out)
            patch.setattr(sys, "stderr", sys_err)
            code: object = 0
            try:
                if arguments and arguments[0] == "findings":
                    from research.commands import findings

                    del sys.argv[1]
                    cli.run_cli(findings, "python -m research")
                else:
                    cli.run_cli()
            except SystemExit as end:
                code = end.code or 0
            finally:
                for number, handler in stops.items():
                    signal.signal(number, handler)
                os.environ.pop("ELMO_VERBOSE", None)
        text = err.read_text()
        if isinstance(code, str):  # as Python itself ends
            code, text = 1, f"{text}{code}\n"
        assert isinstance(code, int)
        return code, out.read_text(), text


class _Input(io.BytesIO):
    name = "<stdin>"
