"""Writes the parts of a store: one part and its table of distinct tokens for each shard.

Parquet is written without dictionaries or statistics of vectors, a row group being one page a
column, so that uncompressed values lie where arithmetic finds them and can be memory-mapped.
Each page has a checksum. The same input always gives the same bytes.

Shapes: N distinct tokens, T tokens, P projection, D = 2P.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.errors import ElmoError
from elmo.files import new_file, sha256
from elmo.store_layout import (
    CODECS,
    ENTRY,
    LARGEST,
    Floats,
    Ints,
    Layout,
    contextual_columns,
    part_schema,
    stored,
    types_schema,
)

MOST_ROWS = 16384  # of a row group: pyarrow begins a new page after 20,000
_ONE_PAGE = 1 << 30

Info = dict[str, Any]


class Vectors(Protocol):
    """Sentences `start` to `stop` of a part; `contextual[l - 1]` is layer l of them, (T, D)."""

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def contextual(self) -> list[Floats]: ...


@dataclass(frozen=True)
class Rows:
    """n sentences end to end: sentence i has the tokens `ids[offsets[i] : offsets[i + 1]]`.

    An id is a row of `types`, the distinct tokens.
    """

    sentence_ids: Ints
    document_ids: Ints
    offsets: Ints
    ids: Ints
    types: pa.StringArray


class Names(NamedTuple):
    """The files of one part."""

    part: str
    types: str


def part_names(number: int) -> Names:
    """The files of part `number`, such as `part-00000.parquet` and `types-00000.parquet`."""
    return Names(f"part-{number:05d}.parquet", f"types-{number:05d}.parquet")


def write_part(
    folder: Path,
    number: int,
    *,
    rows: Rows,
    x_NP: Floats,
    segments: Iterable[Vectors],
    layout: Layout,
    metadata: dict[str, str],
    beside: Path | None = None,
) -> None:
    """Write one part and its types table into `folder`; each appears there only when it is whole.

    `segments` covers the sentences in order; while one is written the next is computed. `beside`
    is where files grow, `folder` by default. The part is renamed last: where it is, its types are.
    """
    names = part_names(number)
    with new_file(folder / names.types, beside=beside) as path:
        columns = stored_x(x_NP, layout) if "layer_0" in layout.layers else {}
        write_types(path, types_schema(layout, metadata=metadata), layout, rows.types, columns)
    schema = part_schema(layout, types_file=names.types, metadata=metadata)
    with (
        new_file(folder / names.part, beside=beside) as path,
        PartWriter(path, schema, layout) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        pending = None
        for segment in segments:
            if pending is not None:
                pending.result()
            pending = thread.submit(_write_segment, writer, rows, x_NP, segment, layout)
        if pending is not None:
            pending.result()


class PartWriter:
    """One part file, written in row groups of about `layout.row_group_tokens` tokens."""

    def __init__(self, path: Path, schema: pa.Schema, layout: Layout) -> None:
        self.layout = layout
        self.schema = schema
        self._writer = _writer(path, schema, layout)

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def add(self, rows: Rows, columns: dict[str, npt.NDArray[Any]]) -> None:
        """Write sentences; `columns` has the stored vectors (T, D) and scales (T,) of them all."""
        offsets = rows.offsets.astype(np.int64)
        ids = rows.ids.astype(ENTRY)
        most = min(self.layout.row_group_tokens, LARGEST // self.layout.width)
        for start, stop in _row_groups(offsets, most):
            first, last = int(offsets[start]), int(offsets[stop])
            places = offsets[start : stop + 1] - first
            arrays = {
                "sentence_id": pa.array(rows.sentence_ids[start:stop], pa.int64()),
                "document_id": pa.array(rows.document_ids[start:stop], pa.int64()),
                "length": pa.array(np.diff(places), pa.int32()),
                "tokens": pa.ListArray.from_arrays(
                    pa.array(places, pa.int32()),
                    rows.types.take(pa.array(ids[first:last])),
                    type=self.schema.field("tokens").type,
                ),
                "types": _blobs(ids[first:last], places),
            }
            for name, values in columns.items():
                arrays[name] = _blobs(values[first:last], places)
            table = pa.Table.from_arrays(
                [arrays[name] for name in self.schema.names], schema=self.schema
            )
            self._writer.write_table(table, row_group_size=max(1, len(table)))


def stored_x(x_NP: Floats, layout: Layout) -> dict[str, npt.NDArray[Any]]:
    """The columns of the types table that hold layer 0."""
    values, scale = stored(x_NP, layout)
    return {"layer_0": values} if scale is None else {"layer_0": values, "layer_0_scale": scale}


def write_types(
    path: Path,
    schema: pa.Schema,
    layout: Layout,
    types: pa.StringArray,
    columns: dict[str, npt.NDArray[Any]],
) -> None:
    """Write a table of N distinct tokens, with x of each where layer 0 is kept."""
    arrays: list[pa.Array] = [types]
    for values in columns.values():
        if values.ndim == 1:
            arrays.append(pa.array(values))
        else:
            kind = pa.binary(layout.x_width)
            data = pa.py_buffer(np.ascontiguousarray(values))
            arrays.append(pa.Array.from_buffers(kind, len(values), [None, data]))
    with _writer(path, schema, layout) as writer:
        table = pa.Table.from_arrays(arrays, schema=schema)
        writer.write_table(table, row_group_size=MOST_ROWS)


def read_metadata(path: Path) -> dict[str, str]:
    """What a part's or types table's footer says; empty where the file is absent or not whole."""
    try:
        found = pq.read_schema(path).metadata or {}
    except (FileNotFoundError, pa.ArrowInvalid):
        return {}
    return {key.decode(): value.decode() for key, value in found.items() if key[:5] == b"elmo."}


def describe_part(folder: Path, number: int) -> Info:
    """The manifest's entry of a part: counts, id ranges, bytes and SHA-256 of its two files."""
    names = part_names(number)
    with pq.ParquetFile(folder / names.part) as file:
        table = file.read(["sentence_id", "document_id", "length"])
        row_groups = file.num_row_groups
    with pq.ParquetFile(folder / names.types) as file:
        types = file.metadata.num_rows
    sentences, documents = (table[name].to_numpy() for name in ("sentence_id", "document_id"))
    return {
        "file": names.part,
        "sentences": table.num_rows,
        "tokens": int(table["length"].to_numpy().sum(dtype=np.int64)),
        "row_groups": row_groups,
        "first_sentence_id": int(sentences[0]),
        "last_sentence_id": int(sentences[-1]),
        "first_document_id": int(documents.min()),
        "last_document_id": int(documents.max()),
        "bytes": (folder / names.part).stat().st_size,
        "sha256": sha256(folder / names.part),
        "types": {
            "file": names.types,
            "rows": types,
            "bytes": (folder / names.types).stat().st_size,
            "sha256": sha256(folder / names.types),
        },
    }


def _write_segment(
    writer: PartWriter, rows: Rows, x_NP: Floats, segment: Vectors, layout: Layout
) -> None:
    first = int(rows.offsets[segment.start])
    last = int(rows.offsets[segment.stop])
    some = Rows(
        rows.sentence_ids[segment.start : segment.stop],
        rows.document_ids[segment.start : segment.stop],
        rows.offsets[segment.start : segment.stop + 1] - first,
        rows.ids[first:last],
        rows.types,
    )
    columns: dict[str, npt.NDArray[Any]] = {}
    found = contextual_columns(layout, x_NP=x_NP, ids=some.ids, layers=segment.contextual)
    for name, vectors in found.items():
        columns[name], scale = stored(vectors, layout)
        if scale is not None:
            columns[f"{name}_scale"] = scale
    writer.add(some, columns)


def _row_groups(offsets: Ints, tokens: int) -> Iterator[tuple[int, int]]:
    """Runs of sentences of at most `tokens` tokens together, or one sentence longer than that."""
    start, sentences = 0, len(offsets) - 1
    while start < sentences:
        stop = int(np.searchsorted(offsets, offsets[start] + tokens, side="right")) - 1
        stop = min(max(stop, start + 1), start + MOST_ROWS, sentences)
        yield start, stop
        start = stop


def _blobs(values: npt.NDArray[Any], offsets: Ints) -> pa.Array:
    """One binary value a sentence, from the values of all its tokens, without a copy."""
    width = values.itemsize * (1 if values.ndim == 1 else values.shape[1])
    if int(offsets[-1]) * width > LARGEST:
        raise ElmoError(
            f"a sentence of {int(np.diff(offsets).max())} tokens does not fit one value of a "
            "store (2 GB); split it"
        )
    places = pa.py_buffer((offsets * width).astype(np.int32))
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, places, data])


def _writer(path: Path, schema: pa.Schema, layout: Layout) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        compression=CODECS[layout.codec],
        use_dictionary=False,
        write_statistics=[name for name in schema.names if name in ("sentence_id", "document_id")],
        data_page_size=_ONE_PAGE,
        write_page_checksum=True,
    )
