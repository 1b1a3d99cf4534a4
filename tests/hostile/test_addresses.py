"""A URL wherever a file or folder of this machine is meant, and names that stand for no file: one
line, without a login."""

import click
import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.commands.options import INPUT_FOLDER, OUTPUT_FOLDER, PATH, TEXT
from pipeline.text.input_files import find_inputs
from research.commands import findings
from tests.pipeline.command_line import COMMANDS, every_command

pytestmark = pytest.mark.hostile
URL = "s3://key:hunter2@bucket/it"


def given(parameter: click.Parameter, value: str) -> list[str]:
    """How a value is given to a parameter."""
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value = str(next(iter(kind.choices)))
    return [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]


def cases(*kinds: click.ParamType) -> list[object]:
    """Each command with each of its parameters of these types."""
    return [
        pytest.param(command, parameter, id=f"{name} {parameter.name}")
        for name, command in every_command({**COMMANDS, "research": findings})
        for parameter in command.params
        if parameter.type in kinds
    ]


LOCAL = cases(PATH, TEXT)
NAMES = {
    "": "the name is empty",
    "s3:/key:hunter2@bucket/it": "one slash",
    "caf\udce9.txt": "is not UTF-8",
}


def words_of(command: click.Command, parameter: click.Parameter, value: str) -> list[str]:
    """The words of a command in which one parameter has this value, and other arguments some."""
    words: list[str] = []
    for one in command.params:
        if one is parameter or isinstance(one, click.Argument):
            words += given(one, value if one is parameter else "x")
    return words


@pytest.mark.parametrize(("command", "parameter"), LOCAL)
def test_a_url_for_a_path(command: click.Command, parameter: click.Parameter) -> None:
    with pytest.raises(ElmoError, match="is a URL; pass a local file") as caught:
        command.make_context("elmo", words_of(command, parameter, URL))
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("command", "parameter"), cases(PATH, TEXT, INPUT_FOLDER, OUTPUT_FOLDER))
def test_a_name_that_no_file_has(command: click.Command, parameter: click.Parameter) -> None:
    for value, said in NAMES.items():
        with pytest.raises(ElmoError, match=said) as caught:
            command.make_context("elmo", words_of(command, parameter, value))
        assert str(caught.value).isprintable()


def test_a_login_that_a_store_takes_for_a_bucket_is_not_shown() -> None:
    pytest.importorskip("s3fs")
    for read in (lambda: Location(URL).exists("it"), lambda: find_inputs([URL])):
        with pytest.raises(ElmoError, match="Invalid bucket name") as caught:
            read()
        assert "hunter2" not in str(caught.value).replace(URL, "")
