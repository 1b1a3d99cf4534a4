"""Using a model: embed, perplexity, neighbors, search."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    DEVICE,
    FOLDER,
    JSON,
    OVERWRITE,
    PATH,
    TEXT,
    Folder,
    say_done,
    written,
)

if TYPE_CHECKING:
    from elmo.settings import RequestedOfEmbedding


@click.command()
@click.argument("model", type=PATH)
@click.option("--input", "source", type=TEXT, required=True, help="Text; - is stdin.")
@click.option("--output", type=PATH, required=True, help="An .npz file: key k is line k, from 0.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@click.option("--batch-size", default=256, show_default=True, help="Sentences read at a time.")
@click.option("--state", type=click.Choice(["reset", "carry"]), default="reset", show_default=True)
@click.option("--layers", default="all", show_default=True, help="all, or numbers such as 0,2.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), default="float32")
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Of the products; auto: the faster of float32 and bfloat16 here.",
)
@OVERWRITE
@DEVICE
def embed(
    model: Path,
    source: Any,
    output: Path,
    pretokenized: bool,
    batch_size: int,
    state: str,
    layers: str,
    dtype: str,
    precision: "RequestedOfEmbedding",
    overwrite: bool,
    device: str,
) -> None:
    """Embed each line: an array (layers, tokens, dim). The model's own tokenizer cuts the text.

    \b
    Example: elmo embed models/finetune --input text.txt --output vectors.npz
    """
    from ..settings.precision import settled
    from . import text_commands

    say = partial(click.echo, err=True)
    with written(output, overwrite) as out:
        count = text_commands.embed(
            model,
            source,
            out,
            pretokenized=pretokenized,
            batch_size=batch_size,
            state=state,
            layers=layers,
            dtype=dtype,
            precision=settled(precision, setting="--precision", device=device, say=say),
            device=device,
        )
    say_done(f"embed: {count:,} sentences in {output}")


@click.command()
@click.argument("model", type=PATH)
@click.option("--input", "source", type=TEXT, required=True, help="Text; - is stdin.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@JSON
@click.option("--sentences", is_flag=True, help="Print the scores of each line instead.")
@DEVICE
def perplexity(
    model: Path, source: Any, pretokenized: bool, as_json: bool, sentences: bool, device: str
) -> None:
    """The perplexity of a text, each sentence read alone, under the full softmax.

    The model's own tokenizer cuts each line.

    \b
    Example: elmo perplexity models/finetune --input text.txt
    """
    from . import text_commands

    for line in text_commands.perplexity(
        model,
        source,
        pretokenized=pretokenized,
        as_json=as_json,
        sentences=sentences,
        device=device,
    ):
        click.echo(line)


@click.command()
@click.argument("store", type=FOLDER)
@click.argument("text")
@click.option("--model", type=PATH, help="The store's model; default: looked for in models/.")
@click.option("-k", "count", default=10, show_default=True, help="How many neighbours to print.")
@click.option("--layer", help="A layer of the store; default: the mean of all.")
@click.option("--same-word", is_flag=True, help="Only other occurrences of the word.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@JSON
@DEVICE
def neighbors(
    store: Folder,
    text: str,
    model: Path | None,
    count: int,
    layer: str | None,
    same_word: bool,
    pretokenized: bool,
    as_json: bool,
    device: str,
) -> None:
    """List the tokens of STORE that are used most like the one in brackets.

    \b
    Example: elmo neighbors data/features "He has a [gift] for music"
    """
    from . import text_commands

    for line in text_commands.neighbors(
        store,
        text,
        model=model,
        count=count,
        layer=layer,
        same_word=same_word,
        pretokenized=pretokenized,
        as_json=as_json,
        device=device,
    ):
        click.echo(line)


@click.command()
@click.argument("store", type=FOLDER)
@click.argument("text")
@click.option("--model", type=PATH, help="The store's model; default: looked for in models/.")
@click.option("-k", "count", default=10, show_default=True, help="How many sentences to print.")
@click.option("--layer", help="A layer of the store; default: the mean of all.")
@click.option("--pretokenized", is_flag=True, help="Tokens stand between single spaces.")
@JSON
@DEVICE
def search(
    store: Folder,
    text: str,
    model: Path | None,
    count: int,
    layer: str | None,
    pretokenized: bool,
    as_json: bool,
    device: str,
) -> None:
    """Print the sentences of STORE nearest to TEXT, by the mean vector of their tokens.

    Prints the cosine, the number and the tokens of each; all of the store is compared.

    \b
    Example: elmo search data/features "returns an array of the given shape" -k 3
    """
    from . import text_commands

    for line in text_commands.search(
        store,
        text,
        model=model,
        count=count,
        layer=layer,
        pretokenized=pretokenized,
        as_json=as_json,
        device=device,
    ):
        click.echo(line)
