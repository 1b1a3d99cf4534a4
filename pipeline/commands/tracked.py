"""Registered models in MLflow: promote."""

from pathlib import Path

import click

from .options import PARAMS


@click.command()
@click.argument("version", type=click.IntRange(min=1))
@PARAMS
def promote(version: int, params_file: Path) -> None:
    """Make VERSION of the registered model the champion, regardless of its perplexity.

    \b
    Example: elmo promote 2
    """
    from .. import tracking
    from ..settings import params as settings
    from ..tracking import champion

    tracking.check_database_exists()
    params = settings.load(params_file).register
    former = champion.promote(params.name, version, alias=params.alias)
    description = "there was none" if former is None else f"it was version {former}"
    click.echo(f"promote: {params.alias} of {params.name} is version {version} ({description})")
