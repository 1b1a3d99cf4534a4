"""tokenize: text → shards, in pieces that follow from the text alone, each a task of its own.

When all pieces are done their shards get their final names and places in the corpus, so the bytes
never depend on how many workers there were or which was first.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.files import new_folder, read_json
from elmo.shards import SPLITS, Info, describe_shard, shard_name, shift_shard, write_manifest
from pipeline import cluster as workers
from pipeline import quality
from pipeline.inputs import Input, check_input
from pipeline.params import Cluster, Tokenize
from pipeline.pieces import Piece, Result, tokenize_piece
from pipeline.splitters import sentence_splitter, tokenizer
from pipeline.text import plan


def run(
    corpus: Path, out: Path, params: Tokenize, *, text: str, cluster: Cluster
) -> dict[str, float]:
    """Write the shards of a corpus folder's `text`, "general" or "task", to `out`."""
    manifest = read_json(corpus / "manifest.json")
    if text not in manifest.get("texts", {}):
        raise ElmoError(f"{corpus / 'manifest.json'}: names no {text} text; run the corpus stage")
    found = manifest["texts"][text]
    inputs = [
        Input(entry["name"], _place(corpus, entry), entry["bytes"], entry["sha256"])
        for entry in found["inputs"]
    ]
    return tokenize(inputs, out, params, column=found["column"], cluster=cluster)


def tokenize(
    inputs: Sequence[Input], out: Path, params: Tokenize, *, column: str, cluster: Cluster
) -> dict[str, float]:
    """Write the shards of `inputs` to `out`; `ElmoError` leaves nothing behind."""
    _check(params)
    description = _description(params)
    with ThreadPoolExecutor() as threads:
        list(threads.map(check_input, inputs))
    pieces = plan(inputs, shard_bytes=params.shard_bytes, documents=params.documents)
    sample = quality.sample(sum(found.bytes for found in inputs))
    with new_folder(out.absolute()) as folder:
        work = [
            Piece(number, spans, folder, params, column, sample)
            for number, spans in enumerate(pieces)
        ]
        with workers.session() if len(work) > 1 else nullcontext():
            results = list(workers.tasks(tokenize_piece, work, cluster=cluster, label="tokenize"))
            shards = _place_shards(folder, results, cluster)
        books = sum((result.books for result in results), Counter[str]())
        report = quality.merge([result.quality for result in results])
        _check_splits(inputs, books, params)
        counts = _counts(books)
        write_manifest(
            folder,
            shards=shards,
            documents={split: books[f"documents.{split}"] for split in SPLITS},
            tokenizer=description,
            counts=counts,
            inputs=[{"name": i.name, "bytes": i.bytes, "sha256": i.sha256} for i in inputs],
            quality=report,
        )
    return _metrics(counts, report, shards)


def _place_shards(folder: Path, results: Sequence[Result], cluster: Cluster) -> list[Info]:
    """Give all pieces' shards their final names and ids; entries with train first."""
    sentences = [0, *accumulate(result.books["sentences"] for result in results)]
    documents = [0, *accumulate(result.books["documents"] for result in results)]
    moves = []
    for split in SPLITS:
        found = [
            (name, piece)
            for piece, result in enumerate(results)
            for name, of_split in result.shards
            if of_split == split
        ]
        for number, (name, piece) in enumerate(found):
            target = folder / shard_name(split, number)
            moves.append((folder / name, target, split, sentences[piece], documents[piece]))
    return list(workers.tasks(_place_shard, moves, cluster=cluster, label="number"))


def _place_shard(move: tuple[Path, Path, str, int, int]) -> Info:
    path, target, split, sentences, documents = move
    shift_shard(path, sentences=sentences, documents=documents)
    path.rename(target)
    return describe_shard(target, split=split)


def _place(corpus: Path, entry: dict[str, Any]) -> str:
    url = entry.get("url")
    if url is None:
        return str((corpus / entry["name"]).absolute())
    return url if "://" in url else str(Path(url).absolute())


def _check(params: Tokenize) -> None:
    choices = {"sentences": ("line", "split"), "documents": ("file", "line", "blank")}
    for name, allowed in choices.items():
        if getattr(params, name) not in allowed:
            found = getattr(params, name)
            raise ElmoError(f"tokenize.{name} must be one of {', '.join(allowed)}, found {found!r}")
    if not 0 <= params.heldout < 1:
        raise ElmoError(f"tokenize.heldout must be at least 0 and below 1, found {params.heldout}")
    if params.shard_bytes < 1024:
        raise ElmoError(f"tokenize.shard_bytes must be 1024 or more, found {params.shard_bytes}")


def _check_splits(inputs: Sequence[Input], books: Counter[str], params: Tokenize) -> None:
    if not books["tokens"]:
        raise ElmoError(f"{inputs[0].url}: no tokens in this text; it holds white space alone")
    empty = [split for split in SPLITS if not books[f"documents.{split}"]]
    if params.heldout and empty:
        documents = sum(books[f"documents.{split}"] for split in SPLITS)
        raise ElmoError(
            f"{inputs[0].url}: none of {documents} documents fell to {empty[0]} with "
            f"tokenize.heldout {params.heldout}; change it, or tokenize.documents to line"
        )


def _description(params: Tokenize) -> dict[str, Any]:
    """What the manifest says of how text became tokens."""
    found: dict[str, Any] = dict(tokenizer(params.tokenizer).description)
    found["sentences"] = "line" if params.sentences == "line" else sentence_splitter()[1]
    return found | {"documents": params.documents, "heldout": params.heldout}


def _counts(books: Counter[str]) -> dict[str, Any]:
    newlines = books["lines"] - books["added"]
    dropped = {
        "blank": {"lines": books["blank_lines"], "bytes": books["blank_bytes"]},
        "newline": {"lines": newlines, "bytes": newlines},
        "space": {"lines": 0, "bytes": books["space_bytes"]},
        "fields": {"lines": 0, "bytes": books["fields"]},
        "mark": {"lines": 0, "bytes": books["mark"]},
        "tokenizer": {"lines": 0, "bytes": books["lost_bytes"]},
    }
    total = books["token_bytes"] + sum(reason["bytes"] for reason in dropped.values())
    assert total == books["bytes"], f"{books['bytes']} bytes read, {total} accounted for"
    return {
        "documents": sum(books[f"documents.{split}"] for split in SPLITS),
        "sentences": books["sentences"],
        "blank_lines": books["blank_lines"],
        "tokens": books["tokens"],
        "bytes": books["bytes"],
        "token_bytes": books["token_bytes"],
        "dropped": dropped,
    }


def _metrics(
    counts: dict[str, Any], report: dict[str, Any], shards: Sequence[Info]
) -> dict[str, float]:
    heldout = sum(info["tokens"] for info in shards if info["split"] == "heldout")
    plain = {name: value for name, value in counts.items() if name != "dropped"}
    dropped = {f"dropped_{name}_bytes": value["bytes"] for name, value in counts["dropped"].items()}
    numbers = {name: value for name, value in report.items() if isinstance(value, int | float)}
    return {**plain, **dropped, **numbers, "heldout_tokens": heldout, "shards": len(shards)}
