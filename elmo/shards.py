"""Shards: Arrow files of sentences, their manifest, and nothing that parses text.

A row is a sentence: its place in the corpus, its document, and its tokens as indices into the
shard's list of distinct tokens (its *types*). The file is one uncompressed record batch, so it is
memory-mapped and its columns are numpy arrays at once; whoever needs word or character ids looks
them up once for each type. A blank line of the corpus is a row without tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo.errors import ElmoError
from elmo.files import check_sha256, digest, new_folder, read_json, sha256, write_json

SCHEMA_VERSION = 1
SPLITS = ("train", "heldout")
_METADATA = {"kind": "elmo.shard", "schema": str(SCHEMA_VERSION)}
SCHEMA = pa.schema(
    [
        pa.field("sentence_id", pa.int64(), nullable=False),
        pa.field("document_id", pa.int64(), nullable=False),
        pa.field("tokens", pa.list_(pa.dictionary(pa.int32(), pa.string())), nullable=False),
    ],
    metadata=_METADATA,
)

Info = dict[str, Any]


@dataclass(frozen=True)
class Shard:
    """One shard, memory-mapped: n sentences, their tokens end to end, and the distinct tokens.

    Sentence i has the tokens `ids[offsets[i] : offsets[i + 1]]`, each an index into `types`.
    """

    path: Path
    split: str
    digest: str
    sentence_ids: npt.NDArray[np.int64]
    document_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    dictionary: pa.StringArray

    def __len__(self) -> int:
        return len(self.sentence_ids)

    @cached_property
    def types(self) -> list[str]:
        """The distinct tokens, in the order of their first occurrence in the shard."""
        return self.dictionary.to_pylist()

    def counts(self) -> npt.NDArray[np.int64]:
        """How often each type occurs."""
        return np.bincount(self.ids, minlength=len(self.dictionary))

    def tokens(self, i: int) -> list[str]:
        """The tokens of row i (not of the sentence with that `sentence_id`)."""
        types = self.types
        return [types[id_] for id_ in self.ids[self.offsets[i] : self.offsets[i + 1]]]


class Shards:
    """A folder of shards, taken from its manifest and never from a listing of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_json(folder / "manifest.json")
        if self.manifest.get("kind") != "shards":
            raise ElmoError(f"{folder / 'manifest.json'}: is not the manifest of a shards folder")
        if self.manifest.get("schema") != SCHEMA_VERSION:
            raise ElmoError(
                f"{folder / 'manifest.json'}: has schema {self.manifest.get('schema')}, this "
                f"version reads {SCHEMA_VERSION}; make the shards again"
            )
        self.digest = digest(self.manifest)

    def infos(self, split: str | None = None) -> list[Info]:
        """The manifest's entries of one split (or all), in the order of their sentences."""
        if split not in (*SPLITS, None):
            raise ElmoError(f"{self.folder}: no split {split!r}; there are train and heldout")
        return [info for info in self.manifest["shards"] if split in (info["split"], None)]

    def open(self, info: Info) -> Shard:
        """Memory-map the shard of a manifest entry; `ElmoError` where it is not what that says."""
        return open_shard(self.folder / info["file"], info=info)

    def sentences(self, split: str | None = None) -> int:
        """How many rows there are, blank ones included."""
        return sum(info["sentences"] for info in self.infos(split))

    def tokens(self, split: str | None = None) -> int:
        """How many tokens there are, boundaries not counted."""
        return sum(info["tokens"] for info in self.infos(split))

    def verify(self, split: str | None = None) -> None:
        """Check every shard's bytes; `ElmoError` naming the first one truncated or altered."""
        for info in self.infos(split):
            check_sha256(self.folder / info["file"], info["sha256"])


def open_shard(path: Path, *, info: Info) -> Shard:
    """Memory-map one shard file described by `info`, without reading its tokens."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise ElmoError(
            f"{path}: is missing, though its manifest names it; make it again"
        ) from None
    if size != info["bytes"]:
        raise ElmoError(
            f"{path}: truncated or altered ({size} bytes, its manifest says {info['bytes']}); "
            "restore it or make the folder again"
        )
    batch = _read(path)
    tokens = batch.column("tokens")
    return Shard(
        path=path,
        split=info["split"],
        digest=info["sha256"],
        sentence_ids=batch.column("sentence_id").to_numpy(),
        document_ids=batch.column("document_id").to_numpy(),
        offsets=tokens.offsets.to_numpy(),
        ids=tokens.values.indices.to_numpy(),
        dictionary=tokens.values.dictionary,
    )


def write_shard(
    path: Path,
    *,
    sentence_ids: npt.NDArray[np.int64],
    document_ids: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int32],
    tokens: pa.DictionaryArray,
) -> None:
    """Write one shard of n sentences; the same input always gives the same bytes.

    `tokens` holds all tokens end to end as dictionary<int32, string>, its dictionary being exactly
    the distinct ones; `offsets` (n + 1) says where each sentence begins.
    """
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tokens)
    columns = [pa.array(sentence_ids, pa.int64()), pa.array(document_ids, pa.int64()), lists]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def describe_shard(path: Path, *, split: str) -> Info:
    """The manifest entry of a shard file: its counts, its first and last sentence, its digest."""
    batch = _read(path)
    tokens, places = batch.column("tokens").values, batch.column("sentence_id")
    return {
        "file": path.name,
        "split": split,
        "sentences": batch.num_rows,
        "tokens": len(tokens),
        "types": len(tokens.dictionary),
        "first_sentence_id": places[0].as_py(),
        "last_sentence_id": places[-1].as_py(),
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
    }


def shift_shard(path: Path, *, sentences: int, documents: int) -> None:
    """Add to every sentence and document id of a shard file, in place.

    For writers that learn only at the end what comes before their part of the corpus.
    """
    with pa.memory_map(str(path)) as file:
        whole = file.read_buffer()
        batch = pa.ipc.open_file(whole).get_batch(0)
        for column, by in (("sentence_id", sentences), ("document_id", documents)):
            start = batch.column(column).buffers()[1].address - whole.address
            np.memmap(path, np.int64, "r+", offset=start, shape=(batch.num_rows,))[:] += by


def shard_name(split: str, number: int) -> str:
    """The file name of a split's shard, such as `train-00000.arrow`."""
    return f"{split}-{number:05d}.arrow"


def write_manifest(
    folder: Path,
    *,
    shards: Sequence[Info],
    documents: dict[str, int],
    tokenizer: dict[str, Any],
    counts: dict[str, Any],
    inputs: Sequence[Info],
    quality: dict[str, Any],
) -> None:
    """Write `manifest.json`; `documents` gives their number in each split, `counts` the books."""
    splits = {
        split: {
            "sentences": sum(s["sentences"] for s in shards if s["split"] == split),
            "tokens": sum(s["tokens"] for s in shards if s["split"] == split),
            "documents": documents[split],
        }
        for split in SPLITS
    }
    manifest = {
        "kind": "shards",
        "schema": SCHEMA_VERSION,
        "tokenizer": tokenizer,
        "counts": counts,
        "quality": quality,
        "splits": splits,
        "shards": list(shards),
        "inputs": list(inputs),
    }
    write_json(folder / "manifest.json", manifest)


def write_shards(
    out: Path,
    sentences: Iterable[Sequence[str]],
    *,
    heldout_every: int = 0,
    shard_sentences: int = 1000,
) -> "Shards":
    """Write a shards folder from lists of tokens, each sentence a document of its own.

    Every `heldout_every`-th sentence is held out (0: none). For data that is already in Python;
    text files go through the tokenize stage.
    """
    rows = list(sentences)
    heldout = {
        i for i in range(len(rows)) if heldout_every and i % heldout_every == heldout_every - 1
    }
    split_ids = {
        "train": [i for i in range(len(rows)) if i not in heldout],
        "heldout": sorted(heldout),
    }
    with new_folder(out) as folder:
        infos = []
        for split, ids in split_ids.items():
            for number, start in enumerate(range(0, len(ids), shard_sentences)):
                some = ids[start : start + shard_sentences]
                path = folder / shard_name(split, number)
                infos.append(_write_rows(path, split, some, [rows[i] for i in some]))
        counts = {
            "documents": len(rows),
            "sentences": len(rows),
            "blank_lines": sum(not row for row in rows),
            "tokens": sum(len(row) for row in rows),
            "bytes": sum(len(token.encode()) for row in rows for token in row),
            "dropped": {},
        }
        write_manifest(
            folder,
            shards=infos,
            documents={split: len(ids) for split, ids in split_ids.items()},
            tokenizer={"name": "none"},
            counts=counts,
            inputs=[],
            quality={},
        )
    return Shards(out)


def _write_rows(path: Path, split: str, ids: list[int], rows: list[Sequence[str]]) -> Info:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    tokens = pa.array([token for row in rows for token in row], pa.string()).dictionary_encode()
    places = np.array(ids, np.int64)
    write_shard(path, sentence_ids=places, document_ids=places, offsets=offsets, tokens=tokens)
    return describe_shard(path, split=split)


def _read(path: Path) -> pa.RecordBatch:
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            if reader.num_record_batches != 1 or not reader.schema.equals(SCHEMA):
                raise ElmoError(f"{path}: is an Arrow file but not a shard; make it again")
            return reader.get_batch(0)
    except pa.ArrowInvalid as error:
        raise ElmoError(f"{path}: truncated or altered ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
