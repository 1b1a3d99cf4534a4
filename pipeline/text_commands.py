"""What the commands on plain text do: embed, perplexity, neighbors."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np

from elmo.checkpoint import load_model
from elmo.embedder import Carry, Embedder
from elmo.errors import ElmoError
from elmo.features import FeatureStore
from elmo.files import new_file
from elmo.neighbors import Neighbor, parse_query
from elmo.neighbors import neighbors as nearest
from elmo.score import perplexity as perplexity_of
from elmo.score import scores

BATCHES = 4


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
) -> int:
    """Embed a sentence a line into an .npz file; return how many. A blank line has no tokens."""
    embedder = Embedder.load(model)
    chosen = _layers(layers, embedder)
    carry: Carry | Literal["reset"] = Carry() if state == "carry" else "reset"
    count = 0
    with new_file(output) as new, zipfile.ZipFile(new, "w", allowZip64=True) as archive:
        for sentences in _groups(_sentences(source, pretokenized), batch_size * BATCHES):
            found = embedder.embed(sentences, batch_size, layers=chosen, state=carry)
            for vectors in found:
                with archive.open(zipfile.ZipInfo(f"{count}.npy"), "w", force_zip64=True) as entry:
                    np.lib.format.write_array(cast(BinaryIO, entry), vectors.astype(dtype))
                count += 1
    return count


def perplexity(
    model: Path, source: BinaryIO, *, pretokenized: bool, as_json: bool, sentences: bool
) -> Iterator[str]:
    """The figures of a text, or the scores of each line, ready to print."""
    loaded = load_model(model)
    lines = list(_sentences(source, pretokenized))
    if sentences:
        for tokens, score in zip(lines, scores(loaded, lines), strict=True):
            yield f"{score.forward:.4f}\t{score.backward:.4f}\t{' '.join(tokens)}"
        return
    found = perplexity_of(loaded, lines).to_dict()
    if as_json:
        finite = {name: value if value == value else None for name, value in found.items()}
        yield json.dumps(finite)
        return
    yield (
        f"perplexity {found['average']:.2f} (forward {found['forward']:.2f}, "
        f"backward {found['backward']:.2f}) over {found['tokens']:,.0f} tokens, "
        f"{found['unk_rate']:.2%} unknown"
    )


def neighbors(
    store: Path, text: str, *, model: Path | None, count: int, layer: str | None
) -> Iterator[str]:
    """The nearest neighbours of the bracketed token, a line each."""
    for found in nearest_of(store, text, model=model, count=count, layer=layer):
        yield f"{found.cosine:.3f}  {found.sentence_id:>7}  {found.marked()}"


def nearest_of(
    store: Path, text: str, *, model: Path | None, count: int, layer: str | None
) -> list[Neighbor]:
    """The nearest neighbours of the bracketed token; the text is cut as the store's was."""
    from pipeline.splitters import tokenizer

    opened = FeatureStore(store, checked=True)
    folder = model or _model_of(opened)
    name = opened.manifest["sources"][0]["tokenizer"]["name"]
    split = tokenizer("whitespace" if name == "none" else name).split
    tokens, place = parse_query(text, tokenize=lambda part: split([part])[0])
    chosen = int(layer) if layer is not None and layer.isdecimal() else layer
    embedder = Embedder.load(folder)
    return nearest(opened, embedder, tokens, place, k=count, layer=chosen)


def _model_of(store: FeatureStore) -> Path:
    """The model folder under models/ that made a store."""
    from elmo.features import model_digest

    wanted = store.manifest["model"]["digest"]
    for config in sorted(Path("models").glob("*/config.json")):
        if model_digest(config.parent) == wanted:
            return config.parent
    raise ElmoError(f"models/: no model here made the store (digest {wanted[:12]}); name --model")


def _layers(layers: str, embedder: Embedder) -> list[int]:
    if layers == "all":
        return list(range(embedder.layers))
    try:
        return [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ElmoError(f"--layers must be all or numbers such as 0,2; found {layers!r}") from None


def _sentences(source: BinaryIO, pretokenized: bool) -> Iterator[list[str]]:
    """A sentence a line; `ElmoError` names a line that is not UTF-8."""
    from pipeline.splitters import tokenizer

    split = tokenizer("unicode").split
    name = getattr(source, "name", "-")
    for number, line in enumerate(source, 1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise ElmoError(
                f"{name}:{number}: byte {error.start + 1} of the line is not UTF-8; "
                "convert the file to UTF-8"
            ) from None
        yield [t for t in text.split(" ") if t] if pretokenized else split([text])[0]


def _groups(sentences: Iterator[list[str]], size: int) -> Iterator[list[list[str]]]:
    group: list[list[str]] = []
    for sentence in sentences:
        group.append(sentence)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
