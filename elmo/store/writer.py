"""The writer of a store's parts and their tables of distinct tokens.

A file name contains the part's number and the first digits of the file's SHA-256, so two writers
never use one name for different bytes, and a file's name shows whether it is complete.

Parquet is written without dictionaries and without statistics of vectors, and each column of a row
group is one page, so uncompressed values can be located by arithmetic and memory-mapped. Each page
has a checksum. The same input always gives the same bytes.

Shapes: N distinct tokens, T tokens, P projection, D = 2P.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.data.arrays import Floats, Ints
from elmo.data.ragged import split_into_runs
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import sha256
from elmo.store.dtypes import to_stored
from elmo.store.layout import (
    MAX_VALUE_BYTES,
    TYPE_ID_DTYPE,
    Layout,
    contextual_columns,
    part_schema,
    types_schema,
)
from elmo.store.manifest import PartEntry, SourceShard, TypesEntry

if TYPE_CHECKING:
    from elmo.model.embedder import Segment

MAX_ROWS = 16384  # of a row group: pyarrow begins a new page after 20,000
_ONE_PAGE = 1 << 30


@dataclass(frozen=True)
class Rows:
    """Several sentences, a row each: sentence i has the tokens `ids[offsets[i] : offsets[i + 1]]`.

    Each id is an index into `types`, the distinct tokens.
    """

    sentence_ids: Ints
    document_ids: Ints
    offsets: Ints
    ids: Ints
    types: pa.StringArray


@dataclass(frozen=True)
class Origin:
    """The origin of a part: its split, the shards it is embedded from, and what else its footer
    says (`metadata`); `fingerprint` is a digest of everything that determines its content."""

    split: str
    fingerprint: str
    shards: tuple[SourceShard, ...]
    metadata: dict[str, str]  # what else its footer says

    @property
    def footer(self) -> dict[str, str]:
        """Return the metadata for the footers of the part and of its table of types."""
        return {
            "elmo.fingerprint": self.fingerprint,
            "elmo.split": self.split,
            **self.metadata,
        }


def write_part(
    location: Location,
    number: int,
    *,
    rows: Rows,
    x_NP: Floats,
    segments: Iterable["Segment"],
    layout: Layout,
    origin: Origin,
) -> PartEntry:
    """Write part number `number` and its table of types; return the part's manifest entry.

    `x_NP` are the context-free vectors of `rows.types`. `segments` have the vectors of the
    sentences `rows`, all and in order; while one segment is written, the next is computed. A file
    gets its final name only once it is complete.
    """
    with location.temporary() as path:
        columns = stored_x(x_NP, layout) if "layer_0" in layout.layers else {}
        schema = types_schema(layout, metadata=origin.footer)
        write_types(path, schema, layout, rows.types, columns)
        types_entry = publish_types(location, path, number)
    schema = part_schema(layout, types_file=types_entry.path, metadata=origin.footer)
    with location.temporary() as path:
        with part_writer(path, schema, layout) as writer, ThreadPoolExecutor(1) as thread:
            pending = None
            for segment in segments:
                if pending is not None:
                    pending.result()
                pending = thread.submit(_write_segment, writer, rows, x_NP, segment, layout)
            if pending is not None:
                pending.result()
        return publish_part(location, path, number, types_entry=types_entry, origin=origin)


def publish_types(location: Location, path: Path, number: int) -> TypesEntry:
    """Give the local file `path`, a complete table of types, its final name, that of part `number`;
    return its manifest entry."""
    types_entry = _describe_types(path, number)
    _publish(location, path, types_entry)
    return types_entry


def publish_part(
    location: Location, path: Path, number: int, *, types_entry: TypesEntry, origin: Origin
) -> PartEntry:
    """Give the local file `path`, a complete part, its final name, that of part `number`; return
    its manifest entry."""
    part = _describe_part(path, number, types_entry=types_entry, origin=origin)
    _publish(location, path, part)
    return part


def is_whole(location: Location, entry: PartEntry | TypesEntry) -> bool:
    """Tell whether the file of a manifest entry is in the folder, with the entry's size and
    SHA-256."""
    try:
        location.check(entry.path, size=entry.bytes, sha256=entry.sha256)
    except ElmoError:
        return False
    return True


def _publish(location: Location, path: Path, entry: PartEntry | TypesEntry) -> None:
    """Give a file the name that its content determines; a damaged file of that name is replaced."""
    if not location.publish(path, entry.path) and not is_whole(location, entry):
        location.delete(entry.path)
        location.publish(path, entry.path)


def find_part(
    location: Location, names: Iterable[str], number: int, *, origin: Origin
) -> PartEntry | None:
    """Return the manifest entry of an undamaged part number `number` whose footer has the
    fingerprint of `origin`, among the files `names` of a folder.

    Return None if there is none.
    """
    for name in names:
        if not name.startswith(f"part-{number:05d}-"):
            continue
        try:
            with location.local_copy(name) as path:
                footer = _read_footer(path)
                if footer.get("elmo.fingerprint") != origin.fingerprint:
                    continue
                types_path = json.loads(footer["elmo.columns"])["types"]["of"]
                with location.local_copy(types_path) as copy:
                    types_entry = _describe_types(copy, number)
                part = _describe_part(path, number, types_entry=types_entry, origin=origin)
        except (OSError, ElmoError, KeyError, ValueError, pa.ArrowException):
            continue  # damaged, or moved by an equal run: it is made again
        if (part.path, types_entry.path) == (name, types_path):
            return part
    return None


def add_rows(
    writer: pq.ParquetWriter, rows: Rows, columns: dict[str, npt.NDArray[Any]], layout: Layout
) -> None:
    """Write sentences to a part, in row groups of about `layout.row_group_tokens` tokens.

    `columns` holds, by column name, the stored vectors (tokens, dim) and scales (tokens,) of all
    their tokens.
    """
    schema = writer.schema
    offsets = rows.offsets.astype(np.int64)
    ids = rows.ids.astype(TYPE_ID_DTYPE)
    max_tokens = min(layout.row_group_tokens, MAX_VALUE_BYTES // layout.width)
    for start, stop in split_into_runs(offsets, max_tokens, max_sentences=MAX_ROWS):
        first, last = int(offsets[start]), int(offsets[stop])
        own_offsets = offsets[start : stop + 1] - first
        arrays = {
            "sentence_id": pa.array(rows.sentence_ids[start:stop], pa.int64()),
            "document_id": pa.array(rows.document_ids[start:stop], pa.int64()),
            "length": pa.array(np.diff(own_offsets), pa.int32()),
            "tokens": pa.ListArray.from_arrays(
                pa.array(own_offsets, pa.int32()),
                rows.types.take(pa.array(ids[first:last])),
                type=schema.field("tokens").type,
            ),
            "types": _blobs(ids[first:last], own_offsets),
        }
        for name, values in columns.items():
            arrays[name] = _blobs(values[first:last], own_offsets)
        table = pa.Table.from_arrays([arrays[name] for name in schema.names], schema=schema)
        writer.write_table(table, row_group_size=max(1, len(table)))


def stored_x(x_NP: Floats, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of a table of types that hold layer 0, by name, from the context-free
    vectors `x_NP` of its tokens."""
    values, scale = to_stored(x_NP, layout.dtype)
    return {"layer_0": values} if scale is None else {"layer_0": values, "layer_0_scale": scale}


def write_types(
    path: Path,
    schema: pa.Schema,
    layout: Layout,
    types: pa.StringArray,
    columns: dict[str, npt.NDArray[Any]],
) -> None:
    """Write a table of the distinct tokens `types` to the file `path`; `columns` holds their layer
    0, as `stored_x` returns it (empty: not stored)."""
    arrays: list[pa.Array] = [types]
    for values in columns.values():
        if values.ndim == 1:
            arrays.append(pa.array(values))
        else:
            kind = pa.binary(layout.x_width)
            data = pa.py_buffer(np.ascontiguousarray(values))
            arrays.append(pa.Array.from_buffers(kind, len(values), [None, data]))
    with part_writer(path, schema, layout) as writer:
        table = pa.Table.from_arrays(arrays, schema=schema)
        writer.write_table(table, row_group_size=MAX_ROWS)


def _read_footer(path: Path) -> dict[str, str]:
    metadata = pq.read_schema(path).metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items() if key[:5] == b"elmo."}


def _describe_types(path: Path, number: int) -> TypesEntry:
    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
    digest = sha256(path)
    name = f"types-{number:05d}-{digest[:12]}.types"
    return TypesEntry(file=name, rows=rows, bytes=path.stat().st_size, sha256=digest)


def _describe_part(
    path: Path, number: int, *, types_entry: TypesEntry, origin: Origin
) -> PartEntry:
    """Return the manifest entry of a part: counts, id ranges, size and SHA-256."""
    with pq.ParquetFile(path) as file:
        table = file.read(["sentence_id", "document_id", "length"])
        row_groups = file.num_row_groups
    sentences, documents = (table[name].to_numpy() for name in ("sentence_id", "document_id"))
    digest = sha256(path)
    return PartEntry(
        file=f"part-{number:05d}-{digest[:12]}.parquet",
        split=origin.split,  # type: ignore[arg-type]
        sentences=table.num_rows,
        tokens=int(table["length"].to_numpy().sum(dtype=np.int64)),
        row_groups=row_groups,
        first_sentence_id=int(sentences[0]),
        last_sentence_id=int(sentences[-1]),
        first_document_id=int(documents.min()),
        last_document_id=int(documents.max()),
        bytes=path.stat().st_size,
        sha256=digest,
        fingerprint=origin.fingerprint,
        types=types_entry,
        shards=origin.shards,
    )


def _write_segment(
    writer: pq.ParquetWriter, rows: Rows, x_NP: Floats, segment: "Segment", layout: Layout
) -> None:
    first = int(rows.offsets[segment.start])
    last = int(rows.offsets[segment.stop])
    sentences = Rows(
        rows.sentence_ids[segment.start : segment.stop],
        rows.document_ids[segment.start : segment.stop],
        rows.offsets[segment.start : segment.stop + 1] - first,
        rows.ids[first:last],
        rows.types,
    )
    columns: dict[str, npt.NDArray[Any]] = {}
    contextual = contextual_columns(layout, x_NP=x_NP, ids=sentences.ids, layers=segment.contextual)
    for name, vectors in contextual.items():
        columns[name], scale = to_stored(vectors, layout.dtype)
        if scale is not None:
            columns[f"{name}_scale"] = scale
    add_rows(writer, sentences, columns, layout)


def _blobs(values: npt.NDArray[Any], offsets: Ints) -> pa.Array:
    """Return one binary value per sentence, from the values of all tokens, without copying them."""
    width = values.itemsize * (1 if values.ndim == 1 else values.shape[1])
    if int(offsets[-1]) * width > MAX_VALUE_BYTES:
        raise ElmoError(
            f"a sentence of {int(np.diff(offsets).max())} tokens does not fit one value of a "
            "store (2 GB); split it"
        )
    byte_offsets = pa.py_buffer((offsets * width).astype(np.int32))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, byte_offsets, data])


def part_writer(path: Path, schema: pa.Schema, layout: Layout) -> pq.ParquetWriter:
    """Return a writer of a part, or of a table of types, that closes its file in the end."""
    return pq.ParquetWriter(
        path,
        schema,
        compression=layout.codec,
        use_dictionary=False,
        write_statistics=[name for name in schema.names if name in ("sentence_id", "document_id")],
        data_page_size=_ONE_PAGE,
        write_page_checksum=True,
    )
