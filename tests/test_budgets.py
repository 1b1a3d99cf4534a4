"""The budgets of code and options, which keep what is added in view of what could be removed."""

from operator import itemgetter
from pathlib import Path

import click
import pytest

from tests.pipeline.command_line import COMMANDS, every_command

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = Path(__file__).with_name("options.txt")
MOST_LINES = {  # a commit that raises one says what was considered for removal instead
    "elmo": 18_554,
    "pipeline": 13_695,
    "research": 2_286,
    "benchmarks": 3_495,
    "tests": 25_500,
}


@pytest.mark.parametrize("package", MOST_LINES)
def test_a_package_stays_within_its_budget_of_lines(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert lines <= MOST_LINES[package], "remove something, or see CONTRIBUTING.md"


def list_options(name: str, command: click.Command) -> str:
    """Return the command's line: its name, arguments and options."""
    names = [
        parameter.human_readable_name
        if isinstance(parameter, click.Argument)
        else ",".join([*parameter.opts, *parameter.secondary_opts])
        for parameter in command.params
    ]
    return " ".join([name, *sorted(names)])


def test_commands_and_options_are_frozen() -> None:
    """A new one replaces another; to add or remove one, edit options.txt: its diff shows it."""
    lines = [list_options(*named) for named in sorted(every_command(COMMANDS), key=itemgetter(0))]
    assert OPTIONS.read_text(encoding="utf-8").splitlines() == lines
