"""The commands of the stages, made from their records, with the stages' names in dvc.yaml."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .options import METRICS, NUMBERS, OUTPUT_FOLDER, PARAMS, PATH, add_cluster_settings
from .run_stage import run_stage

if TYPE_CHECKING:
    from ..stages.stage import Argument, Stage


def stage_command(stage: "Stage") -> click.Command:
    """Build the click command that runs a stage, with the stage's arguments as parameters."""

    def run(**arguments: Any) -> None:
        """Run the stage with the arguments of the command line."""
        run_stage(stage, **arguments)

    command: Callable[..., None] = add_cluster_settings(run) if stage.uses_cluster else run
    for option in (NUMBERS, METRICS, PARAMS):
        command = option(command)
    for argument in reversed([*stage.inputs, *stage.outputs, *filter(None, [stage.work])]):
        command = _click_parameter(argument)(command)
    source = "`elmo run` calls this command with the paths of dvc.yaml."
    help_text = f"{stage.help}\n\n{source}\n\n\b\nExample: elmo run {stage.name}"
    return click.command(stage.name, help=help_text, short_help=stage.help)(command)


def _click_parameter(argument: "Argument") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a positional argument, or an option if the argument has a help text."""
    kind: Any = {"folder": OUTPUT_FOLDER, "path": PATH, "word": str}[argument.kind]
    if argument.choices:
        kind = click.Choice(argument.choices)
    if not argument.help:
        return click.argument(argument.name, type=kind)
    name = f"--{argument.name.replace('_', '-')}"
    return click.option(name, type=kind, required=argument.required, help=argument.help)
