"""The commands that the other files break succeed where nothing is broken."""

from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.pipeline.command_line import elmo


@pytest.mark.usefixtures("tracked", "without_ray")
def test_every_command_succeeds_on_the_whole_project(case: Path) -> None:
    for name, command in COMMANDS.items():
        (case / "metrics.json").unlink(missing_ok=True)  # of another stage
        code, out, error = elmo(*command, cwd=case)
        assert code == 0, f"{name}: {out}{error}"
