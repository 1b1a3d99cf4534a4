"""Runs and registered models in MLflow: runs, stores, promote."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from elmo.errors import ElmoError

from .options import JSON, PARAMS, PATH


@click.command()
@click.option(
    "--work",
    "folder",
    default="runs",
    show_default=True,
    type=PATH,
    help="Work in progress.",
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="How many MLflow runs to list.",
)
@click.option("--send", is_flag=True, help="Send metrics that could not reach MLflow earlier.")
@JSON
@PARAMS
def runs(folder: Path, count: int, send: bool, as_json: bool, params_file: Path) -> None:
    """List local work in progress, runs, versions of the model and stores."""
    from ..settings import params as settings
    from ..tracking import overview

    name = settings.load(params_file).register.name
    local = overview.local_work(folder, send=send)
    if not as_json:
        for line in overview.local_lines(local):  # whether or not MLflow answers
            click.echo(line)
    known = overview.tracked(name, count=count)
    if as_json:
        whole = {"local": asdict(local), "tracked": asdict(known)}
        click.echo(json.dumps(whole, ensure_ascii=False))
        return
    for line in overview.tracked_lines(known):
        click.echo(line)


@click.command()
@click.argument("name")
@click.argument("version", type=int, required=False)
@JSON
def stores(name: str, version: int | None, as_json: bool) -> None:
    """Which stores were made from a registered model NAME, or one VERSION of it.

    With --json, one line for each version: its number, and the location of each store by digest.
    """
    from ..tracking import registry

    rows = [row for row in registry.versions(name) if version in (None, row.version)]
    if not rows:
        raise ElmoError(f"the registry has no {name[:200]} version {version or ''}".rstrip())
    for row in rows:
        if as_json:
            click.echo(json.dumps({"version": row.version, "stores": row.stores()}))
            continue
        named = ", ".join(f"{digest} {where}" for digest, where in row.stores().items())
        click.echo(f"{name} version {row.version}: {named or 'no store'}")


@click.command()
@click.argument("version", type=click.IntRange(min=1))
@PARAMS
def promote(version: int, params_file: Path) -> None:
    """Make VERSION of the registered model the champion, whatever its perplexity."""
    from ..settings import params as settings
    from ..tracking import registry

    params = settings.load(params_file).register
    before = registry.promote(params.name, version, alias=params.alias)
    was = "there was none" if before is None else f"it was version {before}"
    click.echo(f"promote: {params.alias} of {params.name} is version {version} ({was})")
