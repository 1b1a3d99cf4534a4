"""The commands that maintain a store: verify, append, compact, prune, lineage."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import (
    FOLDER,
    JSON,
    PATH,
    add_cluster_options,
    print_done,
)

if TYPE_CHECKING:
    from elmo.io.location import Location

    from ..settings.cluster import Cluster


@click.command()
@click.argument("store", type=FOLDER)
@JSON
def verify(store: "Location", as_json: bool) -> None:
    """Check every checksum and count of STORE, and name what is wrong.

    \b
    Example: elmo verify data/features
    """
    from elmo.store.maintenance import verify as check

    counts = check(store).counts
    if as_json:
        import json

        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(counts)))
        return
    print_done(f"verify: {store} is whole: {counts.parts} parts, {counts.tokens:,} tokens")


@click.command()
@click.argument("store", type=FOLDER)
@click.argument("shards", type=PATH)
@click.argument("model", type=PATH)
@add_cluster_options
def append(store: "Location", shards: Path, model: Path, cluster: "Cluster") -> None:
    """Add the sentences of SHARDS to STORE, as a new version.

    \b
    Example: elmo append data/features data/shards/more models/finetune
    """
    from elmo.io.location import Location

    from ..stages import features as stage

    figures = stage.append(store, Location(shards), Location(model), cluster=cluster)
    print_done(f"append: {store} has {figures['tokens']:,} tokens now")


@click.command()
@click.argument("store", type=FOLDER)
@click.option("--part-tokens", default=1_000_000, show_default=True, help="Tokens per part.")
def compact(store: "Location", part_tokens: int) -> None:
    """Join small neighbouring parts of STORE, as a new version.

    \b
    Example: elmo compact data/features; elmo prune data/features
    """
    from elmo.store.maintenance import compact as join

    manifest = join(store, part_tokens=part_tokens)
    print_done(f"compact: {store} has {manifest.counts.parts} parts now")


@click.command()
@click.argument("store", type=FOLDER)
@click.option("--keep", default=1, show_default=True, help="Versions to keep.")
def prune(store: "Location", keep: int) -> None:
    """Delete old versions of STORE and the files that only they name.

    \b
    Example: elmo prune data/features --keep 2
    """
    from elmo.store.maintenance import prune as delete

    print_done(f"prune: {len(delete(store, keep=keep))} files deleted from {store}")


@click.command()
@click.argument("store", type=FOLDER)
@JSON
def lineage(store: "Location", as_json: bool) -> None:
    """Print the model, run, corpus and settings that made STORE, as JSON; with --json on one line.

    \b
    Example: elmo lineage data/features
    """
    import json

    from elmo.store.maintenance import lineage as lineage_of

    indent = None if as_json else 1
    click.echo(json.dumps(lineage_of(store), indent=indent, ensure_ascii=False, sort_keys=True))
