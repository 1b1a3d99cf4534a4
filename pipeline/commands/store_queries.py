"""Queries of a store: the neighbours of a token, and its integrity."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elmo.errors import ElmoError

from ..terminal.progress import say
from .options import DEVICE, INPUT_FOLDER, JSON, PATH, PRETOKENIZED, check_stdout, print_done

if TYPE_CHECKING:
    from elmo.io.location import Location


@click.command()
@click.argument("store", type=INPUT_FOLDER)
@click.argument("text")
@click.option("--model", type=PATH, help="The store's model. Default: the model in its project.")
@click.option("-k", "count", default=10, show_default=True, help="The number of neighbours.")
@click.option(
    "--layer",
    help="A layer of the store, or average. Default: the layer in which neighbours stand out most.",
)
@click.option("--same-word", is_flag=True, help="List only other occurrences of the same word.")
@PRETOKENIZED
@JSON
@DEVICE
def neighbors(
    store: "Location",
    text: str,
    model: Path | None,
    count: int,
    layer: str | None,
    same_word: bool,
    pretokenized: bool,
    as_json: bool,
    device: str,
) -> None:
    """List the tokens of STORE that are used most similarly to the token in brackets.

    \b
    Example: elmo neighbors data/features "He has a [gift] for music"
    """
    check_stdout()
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore
    from elmo.store.neighbors import (
        most_distinct_layer,
        parse_query,
        random_cosine,
        select_compared_layers,
    )
    from elmo.store.neighbors import neighbors as nearest

    feature_store = FeatureStore(store, checked=True)
    embedder = Embedder.load(model or _find_model(store, feature_store.model), device=device)
    tokens, index = (
        parse_query(text) if pretokenized else parse_query(text, tokenize=embedder.tokenize)
    )
    layer_id = most_distinct_layer(feature_store) if layer is None else layer
    if isinstance(layer_id, str) and layer_id.isdecimal():
        layer_id = int(layer_id)
    hits = nearest(
        feature_store, embedder, tokens, index, k=count, layer=layer_id, same_word=same_word
    )
    if same_word and not hits:
        raise ElmoError(f"{store}: has no other token {tokens[index]!r}; leave out --same-word")
    names = select_compared_layers(feature_store, layer_id)
    chance = random_cosine(feature_store, layer_id)
    if as_json:
        shared_fields = {"layers": names, "random_cosine": chance if chance == chance else None}
        for hit in hits:
            click.echo(json.dumps(asdict(hit) | shared_fields, ensure_ascii=False))
        return
    click.echo("cosine  document  sentence")
    for hit in hits:
        click.echo(f"{hit.cosine:6.3f}{hit.document_id:10}{hit.sentence_id:10}  {hit.context()}")
        if hit.record:
            click.echo(" " * 28 + json.dumps(hit.record, ensure_ascii=False))
    # At the end, so that an error of standard output is the only message.
    subject = names[0].replace("_", " ") if len(names) == 1 else f"mean of {len(names)} layers"
    advice = "; to choose another layer, pass --layer" if len(feature_store.layers) > 1 else ""
    say(f"{subject}: two random tokens have a cosine of {chance:.3f}{advice}")
    if hits and hits[0].cosine < chance:
        say("no close neighbours: the best one is less similar than two random tokens")


@click.command()
@click.argument("store", type=INPUT_FOLDER)
@JSON
def verify(store: "Location", as_json: bool) -> None:
    """Check every checksum and count of STORE and report what is wrong.

    \b
    Example: elmo verify data/features
    """
    check_stdout(is_needed=as_json)
    from elmo.store.verify import verify as check

    counts = check(store).counts
    if as_json:
        import msgspec

        click.echo(json.dumps(msgspec.to_builtins(counts)))
        return
    print_done(
        f"verify: {store} is complete and undamaged: {counts.parts} parts, {counts.tokens:,} tokens"
    )


def _find_model(store: "Location", digest: str) -> "Location":
    """Find the model folder with this digest: in models/ here or near the store."""
    from elmo.io.location import Location
    from elmo.store import model_digest

    from ..cluster.storage import resolve_input

    parents = Path(os.path.abspath(store.local)).parents[:2] if store.local else ()
    for folder in (Path(), *parents):
        for config in sorted(folder.glob("models/*/config.json")):
            if model_digest(config.parent) == digest:
                return resolve_input(Location(config.parent))
    raise ElmoError(
        f"{store}: model {digest[:12]}… is not in models/ here or near the store; pass --model"
    )
