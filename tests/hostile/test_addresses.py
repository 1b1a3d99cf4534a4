"""A URL wherever a file or folder of this machine is meant: one line, without its login."""

from collections.abc import Iterator

import click
import pytest

from elmo.errors import ElmoError
from pipeline.commands.options import PATH
from tests.pipeline.command_line import COMMANDS

pytestmark = pytest.mark.hostile
URL = "s3://key:hunter2@bucket/it"


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, those of `elmo task` too."""
    for name, command in COMMANDS.items():
        if isinstance(command, click.Group):
            inner = click.Context(command)
            for one in command.list_commands(inner):
                found = command.get_command(inner, one)
                assert found is not None
                yield f"{name} {one}", found
        else:
            yield name, command


def given(parameter: click.Parameter, value: str) -> list[str]:
    """How a value is given to a parameter."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value = str(next(iter(kind.choices)))
    return [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]


CASES = [
    pytest.param(command, parameter, id=f"{name} {parameter.name}")
    for name, command in all_commands()
    for parameter in command.params
    if parameter.type is PATH
]


@pytest.mark.parametrize(("command", "parameter"), CASES)
def test_a_url_for_a_path(command: click.Command, parameter: click.Parameter) -> None:
    words: list[str] = []
    for one in command.params:
        if one is parameter:
            words += given(one, URL)
        elif isinstance(one, click.Argument):
            words += given(one, "x")
    with pytest.raises(ElmoError, match="is a URL; name a file or folder of this") as caught:
        command.make_context("elmo", words)
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_many_commands_take_paths() -> None:
    assert len(CASES) > 40
