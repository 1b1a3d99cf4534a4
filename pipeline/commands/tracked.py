"""Runs and registered models in MLflow: runs, stores, promote."""

from pathlib import Path

import click

from elmo.errors import ElmoError

from .. import params as settings
from .options import PARAMS, PATH


@click.command()
@click.option(
    "--runs",
    "folder",
    default="runs",
    show_default=True,
    type=PATH,
    help="Work in progress.",
)
@click.option("-n", "count", default=20, show_default=True, help="How many MLflow runs to list.")
@click.option("--send", is_flag=True, help="Send metrics that could not reach MLflow earlier.")
@PARAMS
def runs(folder: Path, count: int, send: bool, params_file: Path) -> None:
    """List local work in progress, runs, versions of the model and stores."""
    from .. import overview

    name = settings.load(params_file).register.name
    for line in overview.lines(folder, name=name, count=count, send=send):
        click.echo(line)


@click.command()
@click.argument("name")
@click.argument("version", type=int, required=False)
def stores(name: str, version: int | None) -> None:
    """Which stores were made from a registered model NAME, or one VERSION of it."""
    from .. import registry

    versions = registry.versions(name)
    for row in versions:
        if version in (None, row["version"]):
            named = [
                key[6:] + " " + value for key, value in row.items() if key.startswith("store.")
            ]
            click.echo(f"{name} version {row['version']}: {', '.join(named) or 'no store'}")
    if not any(version in (None, row["version"]) for row in versions):
        raise ElmoError(f"the registry has no {name} version {version or ''}".rstrip())


@click.command()
@click.argument("version", type=click.IntRange(min=1))
@PARAMS
def promote(version: int, params_file: Path) -> None:
    """Make VERSION of the registered model the champion, whatever its perplexity."""
    from .. import registry

    params = settings.load(params_file).register
    before = registry.promote(params.name, version, alias=params.alias)
    was = "there was none" if before is None else f"it was version {before}"
    click.echo(f"promote: {params.alias} of {params.name} is version {version} ({was})")
