"""Shards: Arrow files of tokenized sentences, and folders of them. No text is parsed here.

A shard has one row per sentence: its id, its document's id, and its tokens as indices into the
shard's list of distinct tokens (its *types*). The file is one uncompressed record batch, so its
columns are numpy arrays as soon as it is memory-mapped; word and character ids are looked up once
per type. A file never changes once written; the manifest has the offsets to add to its ids.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo.data.manifest import (
    SHARDS_SCHEMA_VERSION,
    SPLITS,
    ShardEntry,
    ShardsCounts,
    Split,
    TokenizerEntry,
    read_shards_manifest,
    write_manifest,
)
from elmo.data.tokenizer import NO_TOKENIZER, Tokenization
from elmo.errors import Damaged, ElmoError, altered_error, first_line
from elmo.io.cache import cached_copy
from elmo.io.folders import new_folder
from elmo.io.location import Folder, Location
from elmo.io.records import check_sha256, digest, sha256

SHARD_FILE_PATTERN = r"(train|heldout)-[\da-f-]+\.arrow"  # the names of shards, whoever wrote them
_SHARD_METADATA = {"kind": "elmo.shard", "schema": str(SHARDS_SCHEMA_VERSION)}
SHARD_SCHEMA = pa.schema(
    [
        pa.field("sentence_id", pa.int64(), nullable=False),
        pa.field("document_id", pa.int64(), nullable=False),
        pa.field("tokens", pa.list_(pa.dictionary(pa.int32(), pa.string())), nullable=False),
    ],
    metadata=_SHARD_METADATA,
)


RECORD_FIELD = pa.field("record", pa.dictionary(pa.int32(), pa.string()), nullable=False)  # if kept


@dataclass(frozen=True)
class Shard:
    """A memory-mapped shard: n sentences, with their tokens end to end, and the distinct tokens.

    Row i has the tokens `ids[offsets[i] : offsets[i + 1]]`, each an index into `types`;
    `dictionary` has the types as Arrow strings. `records` has the columns kept of each row's record
    as JSON, "" for a row without a record; None if none were kept. `digest` is the file's SHA-256.
    """

    path: Path
    split: str
    digest: str
    sentence_ids: npt.NDArray[np.int64]
    document_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    dictionary: pa.StringArray
    records: pa.DictionaryArray | None = None

    def __len__(self) -> int:
        return len(self.sentence_ids)

    @cached_property
    def types(self) -> list[str]:
        """Return the distinct tokens, in the order of their first occurrence in the shard."""
        return self.dictionary.to_pylist()

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how often each distinct token occurs, int64, in the order of `types`."""
        return np.bincount(self.ids, minlength=len(self.dictionary))

    def rows(self, start: int, stop: int) -> "Shard":
        """Return the rows `start` to `stop - 1` as a new shard, with only the types they use."""
        token_start, token_stop = int(self.offsets[start]), int(self.offsets[stop])
        type_ids, ids = np.unique(self.ids[token_start:token_stop], return_inverse=True)
        return replace(
            self,
            sentence_ids=self.sentence_ids[start:stop],
            document_ids=self.document_ids[start:stop],
            offsets=self.offsets[start : stop + 1] - np.int32(token_start),
            ids=ids.astype(np.int32),
            dictionary=self.dictionary.take(pa.array(type_ids)),
            records=None if self.records is None else self.records[start:stop],
        )

    def tokens(self, i: int) -> list[str]:
        """Return the tokens of row `i`, a row number in this file, not a `sentence_id`."""
        types = self.types
        return [types[id_] for id_ in self.ids[self.offsets[i] : self.offsets[i + 1]]]


class Shards:
    """A folder of shards. Only its manifest says which files belong to it."""

    def __init__(self, folder: Folder) -> None:
        self.location = Location.parse(folder)
        self.manifest = read_shards_manifest(self.location)
        self.digest = digest(msgspec.to_builtins(self.manifest))

    @property
    def tokenization(self) -> Tokenization:
        """Return how the text was split into sentences and tokens."""
        return self.manifest.tokenizer.tokenization()

    def entries(self, split: str | None = None) -> list[ShardEntry]:
        """Return the manifest entries of a split (default: both), in the order of sentences."""
        if split not in (*SPLITS, None):
            raise ElmoError(f"{self.location}: no split {split!r}; choose train or heldout")
        return [entry for entry in self.manifest.shards if split in (entry.split, None)]

    def open(self, entry: ShardEntry) -> Shard:
        """Memory-map the shard that the manifest entry `entry` describes.

        The first time a process opens a file, its SHA-256 is checked. Raises `ElmoError` if the
        file does not match its entry. A file at a URL is first copied to a local cache
        (`elmo.io.cache.cached_copy`).
        """
        return open_shard_at(self.location, entry)

    def tokens(self, split: str | None = None) -> int:
        """Return the number of tokens of a split (default: both), without sentence boundaries."""
        return sum(entry.tokens for entry in self.entries(split))

    def check_sizes(self) -> None:
        """Raise `ElmoError` for the first shard that is missing or has the wrong size.

        It reads no shard, so it is fast enough to call before long work.
        """
        self.location.check_files((entry.file, entry.bytes) for entry in self.entries())


def open_shard_at(location: Location, entry: ShardEntry) -> Shard:
    """Memory-map the shard that `entry` describes in a folder; see `Shards.open`."""
    try:
        return _open_shard(cached_copy(location, entry.file, sha256=entry.sha256), entry)
    except Damaged:
        if location.local is not None:
            raise
    # another process may just have deleted the copy to make room
    return _open_shard(cached_copy(location, entry.file, sha256=entry.sha256), entry)


def _open_shard(path: Path, entry: ShardEntry) -> Shard:
    Location(path.parent).check_file(path.name, size=entry.bytes)
    _check_sha256_once(path.absolute(), path.stat().st_mtime_ns, entry.sha256)
    batch = _read_batch(path)
    tokens = batch.column("tokens")
    sentence_ids = batch.column("sentence_id").to_numpy()
    document_ids = batch.column("document_id").to_numpy()
    return Shard(
        path=path,
        split=entry.split,
        digest=entry.sha256,
        sentence_ids=sentence_ids + entry.sentence_offset,
        document_ids=document_ids + entry.document_offset,
        offsets=tokens.offsets.to_numpy(),
        ids=tokens.values.indices.to_numpy(),
        dictionary=tokens.values.dictionary,
        records=batch.column("record") if batch.num_columns > len(SHARD_SCHEMA) else None,
    )


def write_shard(
    path: Path,
    *,
    sentence_ids: npt.NDArray[np.int64],
    document_ids: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int32],
    tokens: pa.DictionaryArray,
    records: pa.StringArray | None = None,
) -> None:
    """Write n sentences to a new shard file; the same input always gives the same bytes.

    `tokens` has all tokens end to end as dictionary<int32, string>; its dictionary must have
    exactly the distinct tokens. `offsets` (n + 1) has the index of each sentence's first token.
    `records` is as in `Shard`.
    """
    token_lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), tokens)
    columns = [pa.array(sentence_ids, pa.int64()), pa.array(document_ids, pa.int64()), token_lists]
    schema = SHARD_SCHEMA
    if records is not None:
        schema = SHARD_SCHEMA.append(RECORD_FIELD)
        columns.append(records.dictionary_encode())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def describe_shard(path: Path, *, split: Split, name: str = "") -> ShardEntry:
    """Read a shard file and return its manifest entry, with offsets of 0;
    `ShardEntry.with_corpus_position` sets the offsets.

    `name` is the file's final name, if it differs from the current one.
    """
    batch = _read_batch(path)
    tokens, sentence_ids = batch.column("tokens").values, batch.column("sentence_id")
    return ShardEntry(
        file=name or path.name,
        split=split,
        sentences=batch.num_rows,
        tokens=len(tokens),
        types=len(tokens.dictionary),
        sentence_offset=0,
        document_offset=0,
        first_sentence_id=sentence_ids[0].as_py(),
        last_sentence_id=sentence_ids[-1].as_py(),
        bytes=path.stat().st_size,
        sha256=sha256(path),
    )


def shard_name(split: str, suffix: str | int) -> str:
    """Return the file name of a shard, such as `train-00000.arrow`.

    `suffix` is its number in the folder, or hex digits and hyphens that identify its source.
    """
    return f"{split}-{suffix if isinstance(suffix, str) else f'{suffix:05d}'}.arrow"


def write_shards(
    out: Folder,
    sentences: Iterable[Sequence[str]],
    *,
    heldout_every: int = 0,
    shard_sentences: int = 1000,
    tokenizer: Tokenization = NO_TOKENIZER,
) -> "Shards":
    """Write a shards folder from token lists in memory, each sentence its own document; return it.

    Every `heldout_every`-th sentence goes to the held-out split (0: none). A shard has at most
    `shard_sentences` sentences. `tokenizer` records how they were tokenized, if known. To make
    shards from text files, use the tokenize stage.
    """
    rows = list(sentences)
    heldout_ids = {
        i for i in range(len(rows)) if heldout_every and i % heldout_every == heldout_every - 1
    }
    split_ids: dict[Split, list[int]] = {
        "train": [i for i in range(len(rows)) if i not in heldout_ids],
        "heldout": sorted(heldout_ids),
    }
    location = Location.parse(out)
    with new_folder(
        location, required=("manifest.json",), pattern=SHARD_FILE_PATTERN, kind="shards"
    ) as folder:
        entries = []
        for split, ids in split_ids.items():
            for shard_number, start in enumerate(range(0, len(ids), shard_sentences)):
                row_ids = ids[start : start + shard_sentences]
                path = folder / shard_name(split, shard_number)
                entries.append(_write_rows(path, split, row_ids, [rows[i] for i in row_ids]))
        size = sum(len(token.encode()) for row in rows for token in row)
        counts = ShardsCounts(
            documents=len(rows),
            sentences=len(rows),
            blank_lines=sum(not row for row in rows),
            tokens=sum(len(row) for row in rows),
            bytes=size,
            token_bytes=size,
            dropped={},
        )
        write_manifest(
            Location(folder),
            shards=entries,
            documents_by_split={split: len(ids) for split, ids in split_ids.items()},
            tokenizer=TokenizerEntry(**msgspec.structs.asdict(tokenizer)),
            counts=counts,
            inputs=[],
            quality={},
        )
    return Shards(location)


def _write_rows(path: Path, split: Split, ids: list[int], rows: list[Sequence[str]]) -> ShardEntry:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int32)
    tokens = pa.array([token for row in rows for token in row], pa.string()).dictionary_encode()
    id_array = np.array(ids, np.int64)
    write_shard(path, sentence_ids=id_array, document_ids=id_array, offsets=offsets, tokens=tokens)
    return describe_shard(path, split=split)


@lru_cache(maxsize=1 << 16)
def _check_sha256_once(path: Path, modified_ns: int, sha256: str) -> None:
    """Check a file's SHA-256, only once for each time of change `modified_ns`."""
    check_sha256(path, sha256)


def _read_batch(path: Path) -> pa.RecordBatch:
    try:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            is_shard = reader.schema in (SHARD_SCHEMA, SHARD_SCHEMA.append(RECORD_FIELD))
            if reader.num_record_batches != 1 or not is_shard:
                raise ElmoError(f"{path}: is an Arrow file but not a shard; make it again")
            return reader.get_batch(0)
    except (pa.ArrowInvalid, OSError) as error:
        raise altered_error(path, first_line(error)) from None
