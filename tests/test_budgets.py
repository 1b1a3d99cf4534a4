"""The budgets of code and options, which keep what is added in view of what could be removed."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.pipeline.command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = Path(__file__).with_name("options.txt")
MOST_LINES = {  # a commit that raises one says what was considered for removal instead
    "elmo": 18_664,
    "pipeline": 13_766,
    "research": 2_303,
    "benchmarks": 3_499,
    "tests": 25_620,
}


@pytest.mark.parametrize("package", MOST_LINES)
def test_a_package_stays_within_its_budget_of_lines(package: str) -> None:
    files = (ROOT / package).rglob("*.py")
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert lines <= MOST_LINES[package], "remove something, or see CONTRIBUTING.md"


def list_options(name: str, command: click.Command) -> Iterator[str]:
    """Return the command's line: its name, arguments and options; then those of its commands."""
    names = [
        parameter.human_readable_name
        if isinstance(parameter, click.Argument)
        else ",".join([*parameter.opts, *parameter.secondary_opts])
        for parameter in command.params
    ]
    yield " ".join([name, *sorted(names)])
    if isinstance(command, click.Group):
        for child, its in sorted(command.commands.items()):
            yield from list_options(f"{name} {child}", its)


def test_commands_and_options_are_frozen() -> None:
    """A new one replaces another; to add or remove one, edit options.txt: its diff shows it."""
    lines = [line for name in sorted(COMMANDS) for line in list_options(name, COMMANDS[name])]
    assert OPTIONS.read_text(encoding="utf-8").splitlines() == lines
