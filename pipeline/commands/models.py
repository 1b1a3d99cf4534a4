"""Using a model: embed, perplexity, neighbors, search.

What loads torch is imported in the command that needs it: `elmo --help` does without.
"""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import click

from elmo.errors import ElmoError, not_utf8_error
from elmo.settings import LONGEST_LINE, MOST_TOKENS

from ..report.phrases import unknown_words_remark
from ..terminal.progress import Progress, say
from .options import (
    DEVICE,
    FOLDER,
    JSON,
    NEW_FILE,
    OVERWRITE,
    PATH,
    TEXT,
    Choice,
    output_file,
    print_done,
)

if TYPE_CHECKING:
    from elmo.data.tokenizer import TextTokenizer
    from elmo.io.location import Location
    from elmo.model.embedder import Embedder
    from elmo.settings import RequestedOfEmbedding
    from elmo.store import FeatureStore

LineSentences = list[list[str]]  # the sentences of a line, each a list of tokens

INPUT = click.option("--input", "source", type=TEXT, required=True, help="Text; - is stdin.")
PRETOKENIZED = click.option(
    "--pretokenized", is_flag=True, help="Tokens stand between single spaces."
)
LAYER = click.option("--layer", help="A layer of the store; default: the mean of all.")
CLEAREST = click.option(
    "--layer",
    help="A layer of the store, or average; default: the one that tells tokens apart best.",
)
STORE_MODEL = click.option(
    "--model", type=PATH, help="The store's model; default: looked for in models/."
)


@click.command()
@click.argument("model", type=PATH)
@INPUT
@click.option(
    "--output", type=NEW_FILE, required=True, help="An .npz file: key k is line k, from 0."
)
@PRETOKENIZED
@click.option("--batch-size", default=256, show_default=True, help="Sentences read at a time.")
@click.option("--state", type=Choice(["reset", "carry"]), default="reset", show_default=True)
@click.option(
    "--layers",
    default="all",
    show_default=True,
    help="The layers to write: all, or numbers such as 0,2.",
)
@click.option("--dtype", type=Choice(["float32", "float16"]), default="float32")
@click.option(
    "--precision",
    type=Choice(["auto", "float32", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="The precision of matrix products; auto: the faster here of float32 and bfloat16.",
)
@OVERWRITE
@DEVICE
def embed(
    model: Path,
    source: BinaryIO,
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
    """Embed each line into an array (layers, tokens, dim); the model's own tokenizer cuts it.

    \b
    Example: elmo embed models/finetune --input text.txt --output vectors.npz
    """
    from elmo.io.atomic import check_absent
    from elmo.model.embedder import Embedder

    from ..settings.precision import choose_precision

    with output_file(output, overwrite) as out:
        check_absent(out)
        products = choose_precision(
            precision, setting="--precision", device=device, say=partial(click.echo, err=True)
        )
        embedder = Embedder.load(model, device=device, precision=products)
        chosen = _layers(layers, embedder)
        tokenize = None if pretokenized else embedder.model.text_tokenizer()
        progress = Progress("embed", _kilobytes(source), unit="kB")
        lines = _lines(source, tokenize, tokens=MOST_TOKENS, progress=progress)
        with progress:
            count = _write_vectors(
                out, embedder, lines, batch_size, layers=chosen, state=state, dtype=dtype
            )
    print_done(f"embed: {count:,} sentences in {output}")


def _write_vectors(
    out: Path,
    embedder: "Embedder",
    lines: Iterator[LineSentences],
    batch_size: int,
    *,
    layers: list[int],
    state: str,
    dtype: str,
) -> int:
    """Write an array for each line; return how many.

    Where the model's tokenizer cuts a line into sentences each is read alone, and their tokens
    stand end to end.
    """
    import zipfile

    import numpy as np

    from elmo.io.atomic import new_file_if_absent
    from elmo.model.batches import Carry

    carry: Carry | Literal["reset"] = "reset"
    if state == "carry":
        carry = Carry()
        lines = ([[token for tokens in line for token in tokens]] for line in lines)
    count = 0
    with new_file_if_absent(out) as new, zipfile.ZipFile(new, "w", allowZip64=True) as archive:
        for vectors in embedder.embed_stream(lines, batch_size, layers=layers, state=carry):
            with archive.open(zipfile.ZipInfo(f"{count}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(cast(BinaryIO, entry), vectors.astype(dtype))
            count += 1
    return count


def _layers(layers: str, embedder: "Embedder") -> list[int]:
    if layers == "all":
        return list(range(embedder.layers))
    try:
        return [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ElmoError(f"--layers must be all or numbers such as 0,2; found {layers!r}") from None


@click.command()
@click.argument("model", type=PATH)
@INPUT
@PRETOKENIZED
@JSON
@click.option("--sentences", is_flag=True, help="Print the scores of each line instead.")
@DEVICE
def perplexity(
    model: Path, source: BinaryIO, pretokenized: bool, as_json: bool, sentences: bool, device: str
) -> None:
    """Print the perplexity of a text, each sentence read alone, under the full softmax.

    The model's own tokenizer cuts each line.

    \b
    Example: elmo perplexity models/finetune --input text.txt
    """
    from elmo.model.folder import load_model
    from elmo.train import perplexity as evaluation

    loaded = load_model(model, device=device)
    tokenize = None if pretokenized else loaded.text_tokenizer()
    lines = _lines(source, tokenize, tokens=LONGEST_LINE)  # scored piece by piece: no bound
    if sentences:
        for block in evaluation.token_blocks(lines, lambda line: sum(map(len, line))):
            each = iter(
                evaluation.sentence_scores(loaded, [tokens for line in block for tokens in line])
            )
            for line in block:
                of_line = [next(each) for _ in line]
                forward, backward = (sum(score[way] for score in of_line) for way in (0, 1))
                if as_json:
                    said = {"forward": forward, "backward": backward, "tokens": [*chain(*line)]}
                    click.echo(json.dumps(said, ensure_ascii=False))
                    continue
                click.echo(f"{forward:.4f}\t{backward:.4f}\t{' '.join(chain(*line))}")
        return
    result = evaluation.perplexity(loaded, chain.from_iterable(lines)).to_dict()
    if as_json:
        finite = {name: value if value == value else None for name, value in result.items()}
        click.echo(json.dumps(finite))
        return
    unknown = unknown_words_remark(result["unk_rate"]) or f", {result['unk_rate']:.2%} unknown"
    click.echo(
        f"perplexity {result['average']:.2f} (forward {result['forward']:.2f}, "
        f"backward {result['backward']:.2f}) over {result['tokens']:,.0f} tokens{unknown}"
    )


@click.command()
@click.argument("store", type=FOLDER)
@click.argument("text")
@STORE_MODEL
@click.option("-k", "count", default=10, show_default=True, help="How many neighbours to print.")
@CLEAREST
@click.option("--same-word", is_flag=True, help="Only other occurrences of the word.")
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
    """List the tokens of STORE that are used most like the one in brackets.

    \b
    Example: elmo neighbors data/features "He has a [gift] for music"
    """
    from elmo.store.neighbors import clearest_layer, parse_query
    from elmo.store.neighbors import neighbors as nearest

    opened, embedder = _opened(store, model, device)
    tokens, index = (
        parse_query(text) if pretokenized else parse_query(text, tokenize=embedder.tokenize)
    )
    chosen = clearest_layer(opened) if layer is None else _layer(layer)
    found = nearest(opened, embedder, tokens, index, k=count, layer=chosen, same_word=same_word)
    if same_word and not found:
        raise ElmoError(f"{store}: has no other {tokens[index]!r}; leave out --same-word")
    _print_hits([(one, one.marked()) for one in found], opened, chosen, as_json, of="tokens")


@click.command()
@click.argument("store", type=FOLDER)
@click.argument("text")
@STORE_MODEL
@click.option("-k", "count", default=10, show_default=True, help="How many sentences to print.")
@LAYER
@PRETOKENIZED
@JSON
@DEVICE
def search(
    store: "Location",
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
    from elmo.store.search import search as nearest

    opened, embedder = _opened(store, model, device)
    sentences = [text.split()] if pretokenized else embedder.tokenize(text)
    chosen = _layer(layer)
    found = nearest(opened, embedder, sentences, k=count, layer=chosen)
    _print_hits([(one, " ".join(one.tokens)) for one in found], opened, chosen, as_json)


def _print_hits(
    hits: list[tuple[Any, str]],
    store: "FeatureStore",
    layer: int | str | None,
    as_json: bool,
    *,
    of: Literal["tokens", "sentences"] = "sentences",
) -> None:
    """Print tokens or sentences of a store, each with its text, and what two random ones have."""
    from elmo.store.neighbors import layer_choice, random_cosine

    names = layer_choice(store, layer)
    random = random_cosine(store, layer, of_sentences=of == "sentences")
    if as_json:
        also = {"layers": names, "random_cosine": random if random == random else None}
        for hit, _ in hits:
            click.echo(json.dumps(asdict(hit) | also, ensure_ascii=False))
        return
    for hit, shown in hits:
        click.echo(f"{hit.cosine:.3f}  {hit.sentence_id:>7}  {shown}")
    # At the end: where standard output can't be written, its error is the only message.
    compared = names[0].replace("_", " ") if len(names) == 1 else f"mean of {len(names)} layers"
    other = "; --layer chooses another" if len(store.layers) > 1 else ""
    say(f"{compared}: two random {of} of the store have {random:.3f}{other}")


def _opened(store: "Location", model: Path | None, device: str) -> "tuple[FeatureStore, Embedder]":
    """The store, and its model: the one that was named, or that under models/ which made it."""
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore

    opened = FeatureStore(store, checked=True)
    return opened, Embedder.load(model or _model_of(opened), device=device)


def _model_of(store: "FeatureStore") -> "Location":
    """The model folder under models/ that made a store."""
    from elmo.io.location import Location
    from elmo.store import model_digest

    from ..cluster.storage import read_from

    digest = store.manifest.model.digest
    for config in sorted(Path("models").glob("*/config.json")):
        if model_digest(config.parent) == digest:
            return read_from(Location(config.parent))
    raise ElmoError(f"models/: no model here made the store (digest {digest[:12]}); pass --model")


def _layer(layer: str | None) -> int | str | None:
    return int(layer) if layer is not None and layer.isdecimal() else layer


def _kilobytes(source: BinaryIO) -> float | None:
    """The size of a file; None of a pipe."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size / 1000 if stat.S_ISREG(status.st_mode) else None


def _lines(
    source: BinaryIO,
    tokenize: "TextTokenizer | None",
    *,
    tokens: int,
    progress: Progress | None = None,
) -> Iterator[LineSentences]:
    """The sentences of each line, or one of its tokens between spaces where `tokenize` is None.

    `ElmoError` names a line that is not UTF-8 or too long, or a text without any token.
    """
    name = getattr(source, "name", "-")
    number = total = 0
    while line := source.readline(LONGEST_LINE + 1):
        number += 1
        if progress is not None:
            progress.advance(len(line) / 1000)
        if len(line) > LONGEST_LINE:
            raise ElmoError(
                f"{name}:{number}: the line has more than {LONGEST_LINE:,} bytes; cut it into "
                "sentences, one on each line"
            )
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise not_utf8_error(name, number, line, error.start) from None
        text = text.removeprefix("\ufeff") if number == 1 else text
        sentences = [[t for t in text.split(" ") if t]] if tokenize is None else tokenize(text)
        if (count := sum(map(len, sentences))) > tokens:
            raise ElmoError(
                f"{name}:{number}: the line has {count:,} tokens, at most {tokens:,} are "
                "read; cut it into sentences, one on each line"
            )
        total += count
        yield sentences
    if not total:
        raise ElmoError(f"{name}: no sentences; the text is empty or blank")
