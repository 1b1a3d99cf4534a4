"""The work of the commands on plain text: embed, perplexity, neighbors, search."""

import json
import os
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np

from elmo.data.tokenizer import TextTokenizer
from elmo.errors import ElmoError
from elmo.io.atomic import check_absent, new_output
from elmo.io.location import Folder
from elmo.model.embedder import Carry, Embedder
from elmo.model.folder import load_model
from elmo.settings import LONGEST_LINE, MOST_TOKENS, EmbeddingPrecision
from elmo.store import FeatureStore
from elmo.store.neighbors import Neighbor, parse_query, random_cosine
from elmo.store.neighbors import neighbors as nearest
from elmo.store.search import search as nearest_sentences
from elmo.train.perplexity import blocks, scores
from elmo.train.perplexity import perplexity as perplexity_of

from ..cluster.storage import read_from
from ..terminal.progress import Progress, say

LineSentences = list[list[str]]  # the sentences of a line, each a list of tokens


def embed(
    model: Path,
    source: BinaryIO,
    output: Path,
    *,
    pretokenized: bool,
    batch_size: int,
    state: str,
    layers: str,
    dtype: str,
    precision: EmbeddingPrecision = "float32",
    device: str = "cpu",
) -> int:
    """Embed each line into an .npz file; return how many. A blank line has no tokens.

    Where the model's tokenizer cuts a line into sentences each is read alone, and their tokens
    stand end to end.
    """
    check_absent(output)
    embedder = Embedder.load(model, device=device, precision=precision)
    chosen = _layers(layers, embedder)
    tokenize = None if pretokenized else embedder.model.text_tokenizer()
    progress = Progress("embed", _kilobytes(source), unit="kB")
    lines = _lines(source, tokenize, tokens=MOST_TOKENS, progress=progress)
    carry: Carry | Literal["reset"] = "reset"
    if state == "carry":
        carry = Carry()
        lines = ([[token for tokens in line for token in tokens]] for line in lines)
    count = 0
    with (
        progress,
        new_output(output) as new,
        zipfile.ZipFile(new, "w", allowZip64=True) as archive,
    ):
        for vectors in embedder.embed_stream(lines, batch_size, layers=chosen, state=carry):
            with archive.open(zipfile.ZipInfo(f"{count}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(cast(BinaryIO, entry), vectors.astype(dtype))
            count += 1
    return count


def perplexity(
    model: Path,
    source: BinaryIO,
    *,
    pretokenized: bool,
    as_json: bool,
    sentences: bool,
    device: str = "cpu",
) -> Iterator[str]:
    """The figures of a text, or the scores of each line, ready to print.

    Memory does not grow with the text.
    """
    loaded = load_model(model, device=device)
    tokenize = None if pretokenized else loaded.text_tokenizer()
    lines = _lines(source, tokenize, tokens=LONGEST_LINE)  # scored piece by piece: no bound
    if sentences:
        for block in blocks(lines, lambda line: sum(map(len, line))):
            each = iter(scores(loaded, [tokens for line in block for tokens in line]))
            for line in block:
                of_line = [next(each) for _ in line]
                forward, backward = (sum(score[way] for score in of_line) for way in (0, 1))
                yield f"{forward:.4f}\t{backward:.4f}\t{' '.join(chain(*line))}"
        return
    result = perplexity_of(loaded, chain.from_iterable(lines)).to_dict()
    if as_json:
        finite = {name: value if value == value else None for name, value in result.items()}
        yield json.dumps(finite)
        return
    yield (
        f"perplexity {result['average']:.2f} (forward {result['forward']:.2f}, "
        f"backward {result['backward']:.2f}) over {result['tokens']:,.0f} tokens, "
        f"{result['unk_rate']:.2%} unknown"
    )


def neighbors(
    store: str | Path,
    text: str,
    *,
    model: Path | None,
    count: int,
    layer: str | None,
    same_word: bool = False,
    pretokenized: bool = False,
    as_json: bool = False,
    device: str = "cpu",
) -> Iterator[str]:
    """The nearest neighbours of the bracketed token, one line per neighbour."""
    for neighbor in nearest_of(
        store,
        text,
        model=model,
        count=count,
        layer=layer,
        same_word=same_word,
        pretokenized=pretokenized,
        device=device,
    ):
        if as_json:
            yield json.dumps(asdict(neighbor), ensure_ascii=False)
            continue
        yield f"{neighbor.cosine:.3f}  {neighbor.sentence_id:>7}  {neighbor.marked()}"


def search(
    store: str | Path,
    text: str,
    *,
    model: Path | None,
    count: int,
    layer: str | None,
    pretokenized: bool = False,
    as_json: bool = False,
    device: str = "cpu",
) -> Iterator[str]:
    """The sentences nearest to a text, one line per sentence."""
    opened = FeatureStore(store, checked=True)
    embedder = Embedder.load(model or _model_of(opened), device=device)
    sentences = [text.split()] if pretokenized else embedder.tokenize(text)
    for hit in nearest_sentences(opened, embedder, sentences, k=count, layer=_layer(layer)):
        if as_json:
            yield json.dumps(asdict(hit), ensure_ascii=False)
            continue
        yield f"{hit.cosine:.3f}  {hit.sentence_id:>7}  {' '.join(hit.tokens)}"


def nearest_of(
    store: str | Path,
    text: str,
    *,
    model: Path | None,
    count: int,
    layer: str | None,
    same_word: bool = False,
    pretokenized: bool = False,
    device: str = "cpu",
) -> Iterator[Neighbor]:
    """The nearest neighbours of the bracketed token; the model's own tokenizer cuts the text.

    After them, so that an output that takes none is all that is said, what to compare them with.
    """
    opened = FeatureStore(store, checked=True)
    embedder = Embedder.load(model or _model_of(opened), device=device)
    if pretokenized:
        tokens, index = parse_query(text)
    else:
        tokens, index = parse_query(text, tokenize=embedder.tokenize)
    chosen = _layer(layer)
    found = nearest(opened, embedder, tokens, index, k=count, layer=chosen, same_word=same_word)
    if same_word and not found:
        raise ElmoError(f"{store}: has no other {tokens[index]!r}; leave out --same-word")
    yield from found
    random = random_cosine(opened, chosen)
    say(f"two random tokens of the store have {random:.3f}; --layer chooses another layer")


def _layer(layer: str | None) -> int | str | None:
    return int(layer) if layer is not None and layer.isdecimal() else layer


def _model_of(store: FeatureStore) -> Folder:
    """The model folder under models/ that made a store."""
    from elmo.store import model_digest

    digest = store.manifest.model.digest
    for config in sorted(Path("models").glob("*/config.json")):
        if model_digest(config.parent) == digest:
            return read_from(str(config.parent))
    raise ElmoError(f"models/: no model here made the store (digest {digest[:12]}); pass --model")


def _layers(layers: str, embedder: Embedder) -> list[int]:
    if layers == "all":
        return list(range(embedder.layers))
    try:
        return [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ElmoError(f"--layers must be all or numbers such as 0,2; found {layers!r}") from None


def _kilobytes(source: BinaryIO) -> float | None:
    """The size of a file; None of a pipe."""
    try:
        status = os.fstat(source.fileno())
    except OSError:
        return None
    return status.st_size / 1000 if stat.S_ISREG(status.st_mode) else None


def _lines(
    source: BinaryIO,
    tokenize: TextTokenizer | None,
    *,
    tokens: int,
    progress: Progress | None = None,
) -> Iterator[LineSentences]:
    """The sentences of each line, or one of its tokens between spaces where `tokenize` is None.

    `ElmoError` names a line that is not UTF-8 or too long.
    """
    name = getattr(source, "name", "-")
    number = 0
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
            raise ElmoError(
                f"{name}:{number}: byte {error.start + 1} of the line is not UTF-8; "
                "convert the file to UTF-8"
            ) from None
        text = text.removeprefix("\ufeff") if number == 1 else text
        sentences = [[t for t in text.split(" ") if t]] if tokenize is None else tokenize(text)
        if (count := sum(map(len, sentences))) > tokens:
            raise ElmoError(
                f"{name}:{number}: the line has {count:,} tokens, at most {tokens:,} are "
                "read; cut it into sentences, one on each line"
            )
        yield sentences
