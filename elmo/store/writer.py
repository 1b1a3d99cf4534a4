"""Write the parts of a store and their tables of distinct tokens.

A file is named by a digest of its inputs, and gets this name once it is complete. So a part that
exists need not be made again, whichever process made it.

Parquet is written without dictionaries and without statistics of vectors, and each column of a row
group is one page, so uncompressed values can be located by arithmetic and memory-mapped. Each page
has a checksum. The same input always gives the same bytes.

Shapes: N distinct tokens, T tokens, P projection, D = 2P.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elmo.data.arrays import Floats, Ints, split_into_runs
from elmo.data.shards import Shard
from elmo.errors import Damaged, ElmoError
from elmo.io.location import Location
from elmo.io.records import digest, sha256
from elmo.store.dtypes import to_stored_dtype
from elmo.store.layout import (
    MAX_VALUE_BYTES,
    TYPE_ID_DTYPE,
    Layout,
    layer_number,
    part_schema,
    types_schema,
)
from elmo.store.manifest import INNER_FOLDER, PartEntry, SourceShard, TypesEntry

MAX_GROUP_ROWS = 16384  # because pyarrow begins a new page after 20,000
_PAGE_BYTES = 1 << 30


class Segment(NamedTuple):
    """The vectors of sentences `start` to `stop - 1` of a shard.

    `layer_vectors[l - 1]` is layer l of all their tokens, end to end: float32 (tokens, dim).
    """

    start: int
    stop: int
    layer_vectors: list[Floats]


@dataclass(frozen=True)
class PartOrigin:
    """The source of a part. `inputs` determines its vectors, and the offsets are added to the ids
    in its shard's file. `position`, which sorts parts, is at most the id of its first sentence."""

    split: str
    shard: SourceShard
    sentence_offset: int
    document_offset: int
    position: int
    inputs: dict[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """Return the digest of everything that determines the part's vectors."""
        return digest(self.inputs)

    @property
    def part_file(self) -> str:
        """Return the name of the part."""
        ids = [self.fingerprint, self.sentence_offset, self.document_offset]
        return f"part-{self.position:012d}-{digest(ids)[:16]}.parquet"

    @property
    def types_path(self) -> str:
        """Return the path of the part's table of types within the store's folder."""
        return f"{INNER_FOLDER}/types-{self.fingerprint[:16]}.types"

    @property
    def footer_metadata(self) -> dict[str, str]:
        """Return the metadata for the footers of the part and of its table of types."""
        names = ("model", "shard", "precision", "device")
        return {
            "elmo.fingerprint": self.fingerprint,
            "elmo.split": self.split,
            **{f"elmo.{name}": self.inputs[name] for name in names},
        }


def write_part(
    location: Location,
    *,
    shard: Shard,
    x_NP: Floats,
    segments: Iterable[Segment],
    layout: Layout,
    origin: PartOrigin,
) -> PartEntry:
    """Write a part and its table of types; return the part's manifest entry.

    `x_NP` has the context-free vectors of the shard's types. `segments` has the vectors of all its
    sentences, in order; while one segment is written, the next is computed.
    """
    with (
        location.temporary_file(origin.types_path) as types_path,
        location.temporary_file(origin.part_file) as path,
    ):
        _write_types(types_path, shard.dictionary, x_NP, layout=layout, origin=origin)
        schema = part_schema(layout, types_file=origin.types_path, metadata=origin.footer_metadata)
        if shard.records is not None:
            schema = schema.append(pa.field("record", pa.string(), nullable=False))
        with part_writer(path, schema, layout.codec) as writer, ThreadPoolExecutor(1) as thread:
            pending_write = None
            for segment in segments:
                if pending_write is not None:
                    pending_write.result()
                pending_write = thread.submit(_write_segment, writer, shard, segment, layout)
            if pending_write is not None:
                pending_write.result()
        _publish_file(location, types_path, origin.types_path)
        _publish_file(location, path, origin.part_file)
        return _describe_part(path, types=_describe_types(types_path, origin), origin=origin)


def _publish_file(location: Location, path: Path, file: str) -> None:
    """Give a complete local file its name; a damaged file of that name is replaced."""
    if not location.publish(path, file) and location.sha256(file) != sha256(path):
        location.delete(file)
        location.publish(path, file)


def find_part(location: Location, origin: PartOrigin) -> PartEntry | None:
    """Return the manifest entry of the part made from `origin` if it is in a folder and undamaged,
    else None."""
    if not location.exists(origin.part_file):
        return None
    try:
        with (
            location.local_copy(origin.types_path) as types,
            location.local_copy(origin.part_file) as path,
        ):
            for file in (types, path):
                _check_pages(file, origin)
            return _describe_part(path, types=_describe_types(types, origin), origin=origin)
    except (OSError, ElmoError, ValueError, pa.ArrowException):
        return None


def reuse_part(
    location: Location, old_store: Location, entry: PartEntry, *, origin: PartOrigin, codec: str
) -> PartEntry | None:
    """Reuse `entry`, a part of `old_store` with the vectors of `origin`; return its new manifest
    entry, or None if it is damaged.

    If the part's ids have changed, it is copied with the new ids. Unchanged files are copied only
    from or to a URL; in a local store, they stay where they are.
    """
    try:
        for file in (entry.types, entry):
            # At a URL, files are never changed, and a check would download them.
            old_store.check_file(
                file.path, size=file.bytes, sha256=None if old_store.local is None else file.sha256
            )
        if entry.file != origin.part_file:
            return _renumber_part(location, old_store, entry, origin=origin, codec=codec)
    except Damaged:
        return None
    if location.local is None or old_store.local is None:
        location.take_file(entry.types.path, old_store)
        location.take_file(entry.path, old_store)
    return msgspec.structs.replace(entry, shard=origin.shard)


def _renumber_part(
    location: Location, old_store: Location, entry: PartEntry, *, origin: PartOrigin, codec: str
) -> PartEntry:
    """Copy a part with the ids of `origin`; embedding it would give the same bytes."""
    shifts = {
        "sentence_id": origin.sentence_offset - entry.sentence_offset,
        "document_id": origin.document_offset - entry.document_offset,
    }
    with (
        old_store.local_copy(entry.path) as old_path,
        location.temporary_file(origin.part_file) as path,
    ):
        with pq.ParquetFile(old_path, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            with part_writer(path, schema, codec) as writer:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    for name, shift in shifts.items():
                        column = pc.add(table[name], pa.scalar(shift, pa.int64()))
                        field_index = schema.get_field_index(name)
                        table = table.set_column(field_index, schema.field(name), column)
                    writer.write_table(table, row_group_size=max(1, len(table)))
        if location.local is None or old_store.local is None:
            location.take_file(entry.types.path, old_store)
        _publish_file(location, path, origin.part_file)
        return _describe_part(path, types=entry.types, origin=origin)


def _check_pages(path: Path, origin: PartOrigin) -> None:
    """Raise an exception unless a file has the fingerprint of `origin` and all its pages match
    their checksums."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        metadata = file.schema_arrow.metadata or {}
        if metadata.get(b"elmo.fingerprint") != origin.fingerprint.encode():
            raise ValueError(f"{path}: was made from other inputs")
        for group in range(file.num_row_groups):
            file.read_row_group(group)


def _write_types(
    path: Path, types: pa.StringArray, x_NP: Floats, *, layout: Layout, origin: PartOrigin
) -> None:
    """Write a table of the distinct tokens `types`, with their context-free vectors `x_NP` if layer
    0 is stored."""
    schema = types_schema(layout, metadata=origin.footer_metadata)
    arrays: list[pa.Array] = [types]
    if "layer_0" in layout.layers:
        buffer = pa.py_buffer(np.ascontiguousarray(to_stored_dtype(x_NP, layout.dtype)))
        value_type = pa.binary(layout.x_bytes)
        arrays.append(pa.Array.from_buffers(value_type, len(x_NP), [None, buffer]))
    with part_writer(path, schema, layout.codec) as writer:
        table = pa.Table.from_arrays(arrays, schema=schema)
        writer.write_table(table, row_group_size=MAX_GROUP_ROWS)


def _describe_types(path: Path, origin: PartOrigin) -> TypesEntry:
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
    return TypesEntry(
        file=origin.types_path.removeprefix(f"{INNER_FOLDER}/"),
        rows=rows,
        bytes=path.stat().st_size,
        sha256=sha256(path),
    )


def _describe_part(path: Path, *, types: TypesEntry, origin: PartOrigin) -> PartEntry:
    """Return the manifest entry of a part: counts, id ranges, size and SHA-256."""
    with pq.ParquetFile(path) as file:
        table = file.read(["sentence_id", "document_id", "length"])
        row_groups = file.num_row_groups
    sentences, documents = (table[name].to_numpy() for name in ("sentence_id", "document_id"))
    return PartEntry(
        file=origin.part_file,
        split=origin.split,  # type: ignore[arg-type]
        sentences=table.num_rows,
        tokens=int(table["length"].to_numpy().sum(dtype=np.int64)),
        row_groups=row_groups,
        first_sentence_id=int(sentences[0]),
        last_sentence_id=int(sentences[-1]),
        first_document_id=int(documents.min()),
        last_document_id=int(documents.max()),
        sentence_offset=origin.sentence_offset,
        document_offset=origin.document_offset,
        bytes=path.stat().st_size,
        sha256=sha256(path),
        fingerprint=origin.fingerprint,
        types=types,
        shard=origin.shard,
    )


def _write_segment(
    writer: pq.ParquetWriter, shard: Shard, segment: Segment, layout: Layout
) -> None:
    """Write a segment's sentences to a part, in row groups of about `layout.row_group_tokens`."""
    schema, ids = writer.schema, shard.ids.astype(TYPE_ID_DTYPE)
    offsets = shard.offsets.astype(np.int64)
    columns = {
        name: to_stored_dtype(segment.layer_vectors[layer_number(name) - 1], layout.dtype)
        for name in layout.contextual_layers
    }
    runs = split_into_runs(
        offsets,
        min(layout.row_group_tokens, MAX_VALUE_BYTES // layout.vector_bytes),
        first_sentence=segment.start,
        end=segment.stop,
        max_sentences=MAX_GROUP_ROWS,
    )
    for start, stop in runs:
        token_slice = slice(int(offsets[start]), int(offsets[stop]))
        token_offsets = offsets[start : stop + 1] - token_slice.start
        arrays = {
            "sentence_id": pa.array(shard.sentence_ids[start:stop], pa.int64()),
            "document_id": pa.array(shard.document_ids[start:stop], pa.int64()),
            "length": pa.array(np.diff(token_offsets), pa.int32()),
            "tokens": pa.ListArray.from_arrays(
                pa.array(token_offsets, pa.int32()),
                shard.dictionary.take(pa.array(ids[token_slice])),
                type=schema.field("tokens").type,
            ),
            "types": _sentence_values(ids[token_slice], token_offsets),
        }
        segment_start = int(offsets[segment.start])
        segment_slice = slice(token_slice.start - segment_start, token_slice.stop - segment_start)
        for name, values in columns.items():
            arrays[name] = _sentence_values(values[segment_slice], token_offsets)
        if shard.records is not None:
            arrays["record"] = shard.records[start:stop].dictionary_decode()
        table = pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)
        writer.write_table(table, row_group_size=max(1, len(table)))


def _sentence_values(values: npt.NDArray[Any], offsets: Ints) -> pa.Array:
    """Return one binary value per sentence, from the values of all tokens, without copying them."""
    row_bytes = values.itemsize * (1 if values.ndim == 1 else values.shape[1])
    if int(offsets[-1]) * row_bytes > MAX_VALUE_BYTES:
        raise ElmoError(
            f"a sentence of {int(np.diff(offsets).max())} tokens does not fit one value of a "
            "store (2 GB); split it"
        )
    byte_offsets = pa.py_buffer((offsets * row_bytes).astype(np.int32))
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, byte_offsets, buffer])


def part_writer(path: Path, schema: pa.Schema, codec: str) -> pq.ParquetWriter:
    """Return a writer of a part or of a table of types, to use in a `with` block."""
    return pq.ParquetWriter(
        path,
        schema,
        compression=codec,
        use_dictionary=False,
        write_statistics=[name for name in schema.names if name in ("sentence_id", "document_id")],
        data_page_size=_PAGE_BYTES,
        write_page_checksum=True,
    )
