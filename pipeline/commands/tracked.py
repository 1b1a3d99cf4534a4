"""Unfinished work, and registered models in MLflow: work, stores, promote."""

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
    default="work",
    show_default=True,
    type=PATH,
    help="The folder where stages keep unfinished work.",
)
@JSON
def work(folder: Path, as_json: bool) -> None:
    """List unfinished stages.

    Runs and versions are shown by `mlflow ui`, experiments by `dvc exp
    show --only-changed`.

    \b
    Example: elmo work
    """
    from ..tracking import unfinished

    found = unfinished.find_unfinished(folder)
    if as_json:
        click.echo(json.dumps(asdict(found), ensure_ascii=False))
        return
    for line in unfinished.unfinished_lines(found):
        click.echo(line)


@click.command()
@click.argument("name")
@click.argument("version", type=int, required=False)
@JSON
def stores(name: str, version: int | None, as_json: bool) -> None:
    """List the stores made from a registered model NAME, or one VERSION of it.

    With --json, one line for each version: its number, and the location of each store by digest.

    \b
    Example: elmo stores elmo 2
    """
    from .. import tracking
    from ..tracking import champion

    tracking.check_database_exists()
    rows = [row for row in champion.versions(name) if version in (None, row.version)]
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
    """Make VERSION of the registered model the champion, whatever its perplexity.

    \b
    Example: elmo promote 2
    """
    from .. import tracking
    from ..settings import params as settings
    from ..tracking import champion

    tracking.check_database_exists()
    params = settings.load(params_file).register
    before = champion.promote(params.name, version, alias=params.alias)
    was = "there was none" if before is None else f"it was version {before}"
    click.echo(f"promote: {params.alias} of {params.name} is version {version} ({was})")
