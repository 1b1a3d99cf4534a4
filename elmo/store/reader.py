"""Read the parts of a store, by sentence or by row group.

An uncompressed local part is memory-mapped. The position of a value follows from its footer and the
sentence lengths, and is confirmed by the length that Parquet stores before each value. Every other
part is read through pyarrow, under a lock, because two threads must not use the same `ParquetFile`
at once.

Shapes: L layers, N distinct tokens, T tokens, P projection, D = 2P.
"""

import threading
import warnings
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.data.arrays import Floats, Ints, split_into_runs
from elmo.errors import Damaged, ElmoError, altered_error, first_line
from elmo.io.location import Location
from elmo.store.dtypes import DTYPES
from elmo.store.layout import TYPE_ID_DTYPE, Layout, layout_metadata
from elmo.store.manifest import PartEntry

_MAX_HEADER_BYTES = 4096  # no page header is longer
_VALUES_PER_COPY = 1 << 15  # torch copies up to this many on one thread
_BLOCK_TOKENS = 128
_MAX_DECODED_COLUMNS = 8  # decoded columns of row groups cached per part


class VectorBlock(NamedTuple):
    """Several neighbouring sentences of one part, with their tokens end to end.

    `offsets` (sentences + 1) is the index of each sentence's first token; `type_ids` (tokens,) are
    rows of the part's table of distinct tokens; `vectors` is float32 (layers, tokens, dim).
    """

    sentence_ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    type_ids: npt.NDArray[np.int32]
    vectors: Floats


class ParquetColumns:
    """A Parquet file of a store; in a memory-mapped file, values are located by arithmetic."""

    def __init__(self, location: Location, file: str, layout: Layout) -> None:
        self.name = location.path_of(file)
        self._lock = threading.Lock()  # for `_file` and `_decoded_columns`
        self.file_map = _map_file(location, file) if layout.codec == "none" else None
        self._file = open_parquet(location, file, file_map=self.file_map)
        check_layout(self.name, self._file.schema_arrow, layout)
        self._metadata = self._file.metadata
        paths = [self._file.schema.column(i).path for i in range(len(self._file.schema))]
        self._columns = {path.split(".")[0]: i for i, path in enumerate(paths)}
        rows = [self._metadata.row_group(g).num_rows for g in range(self._file.num_row_groups)]
        self.group_starts = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
        self._value_offsets: dict[tuple[int, str], int] = {}
        self._decoded_columns: OrderedDict[tuple[int, str], pa.Array] = OrderedDict()

    def row_group_of(self, row: int) -> int:
        """Return the index of the row group that contains a row."""
        return bisect_right(self.group_starts, row) - 1

    def has_column(self, name: str) -> bool:
        """Tell whether the file has a column."""
        return name in self._columns

    def read(self, columns: list[str], group: int | None = None) -> pa.Table:
        """Return the given columns, of all rows or a row group; raise `Damaged` if that fails."""
        try:
            with self._lock:
                if group is None:
                    return self._file.read(columns)
                return self._file.read_row_group(group, columns)
        except (pa.ArrowException, OSError) as error:
            raise altered_error(self.name, first_line(error)) from None

    def value_offset(self, group: int, column: str, size: int) -> int:
        """Return where the values of a row group's column begin in the memory-mapped file, or -1.

        `size` is the expected size of the values in bytes, with their lengths. If the column is one
        page, its values end where the column ends. Otherwise the result is -1: use `decode_column`
        instead.
        """
        key = (group, column)
        if key not in self._value_offsets:
            chunk = self._metadata.row_group(group).column(self._columns[column])
            header_bytes = chunk.total_compressed_size - size
            is_inside = chunk.data_page_offset + chunk.total_compressed_size <= len(
                self.file_map or b""
            )
            is_one_page = is_inside and 0 < header_bytes < _MAX_HEADER_BYTES
            self._value_offsets[key] = chunk.data_page_offset + header_bytes if is_one_page else -1
        return self._value_offsets[key]

    def decode_column(self, group: int, column: str) -> pa.Array:
        """Return a row group's column, decoded by pyarrow; the most recent columns are cached."""
        key = (group, column)
        with self._lock:
            if key in self._decoded_columns:
                self._decoded_columns.move_to_end(key)
                return self._decoded_columns[key]
        values = self.read([column], group)[column]
        array = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        with self._lock:
            self._decoded_columns[key] = array
            while len(self._decoded_columns) > _MAX_DECODED_COLUMNS:
                self._decoded_columns.popitem(last=False)
        return array

    def close(self) -> None:
        """Close the file; arrays that were read from it stay valid."""
        with self._lock:
            self._decoded_columns.clear()
            self._file.close(force=True)


class TypeTable:
    """The distinct tokens of a part: their text and, if the store keeps layer 0, their context-free
    vectors x (layer 0 is [x; x])."""

    def __init__(self, location: Location, file: str, layout: Layout) -> None:
        self._parquet = ParquetColumns(location, file, layout)
        self._layout = layout
        self._dtype = np.dtype(DTYPES[layout.dtype])

    @cached_property
    def tokens(self) -> pa.StringArray:
        """Return the text of the N distinct tokens."""
        return self._parquet.read(["token"])["token"].combine_chunks()

    def close(self) -> None:
        """Close the file; arrays that were read from it stay valid."""
        self._parquet.close()

    def x_vectors(self, ids: Ints) -> Floats:
        """Return the context-free vectors x of the types `ids`, float32 (len(ids), dim / 2)."""
        tables = self._x_tables
        if len(tables) == 1:
            values_TP = tables[0][ids]
        else:
            starts = np.array(self._parquet.group_starts)
            group_T = np.searchsorted(starts, ids, side="right") - 1
            values_TP = np.empty((len(ids), self._layout.dim // 2), self._dtype)
            for group in np.unique(group_T):
                rows = np.flatnonzero(group_T == group)
                values_TP[rows] = tables[group][ids[rows] - starts[group]]
        x_TP = np.empty(values_TP.shape, np.float32)
        to_float32(values_TP, x_TP)
        return x_TP

    @cached_property
    def _x_tables(self) -> list[npt.NDArray[Any]]:
        starts = self._parquet.group_starts
        return [self._x_table(g, starts[g + 1] - starts[g]) for g in range(len(starts) - 1)] or [
            np.empty((0, self._layout.dim // 2), self._dtype)
        ]

    def _x_table(self, group: int, rows: int) -> npt.NDArray[Any]:
        shape = (rows, self._layout.dim // 2)
        if self._parquet.file_map is not None:
            offset = self._parquet.value_offset(group, "layer_0", rows * self._layout.x_bytes)
            if offset >= 0:
                flat_values = np.frombuffer(
                    self._parquet.file_map, self._dtype, shape[0] * shape[1], offset
                )
                return flat_values.reshape(shape)
        values = self._parquet.decode_column(group, "layer_0")
        flat_values = np.frombuffer(values.buffers()[1], self._dtype)
        return flat_values.reshape(-1, shape[1])[values.offset : values.offset + rows]


class Part:
    """An open part of a store; vectors are read and decoded when they are requested. `shifts` are
    added to its sentence ids and document ids. With `checked`, the SHA-256 of its two files is
    verified, otherwise only their size."""

    def __init__(
        self,
        location: Location,
        entry: PartEntry,
        layout: Layout,
        *,
        shifts: tuple[int, int] = (0, 0),
        checked: bool = False,
    ) -> None:
        for file in (entry.types, entry):
            location.check_file(file.path, size=file.bytes, sha256=file.sha256 if checked else None)
        self._layout = layout
        name = location.path_of(entry.file)
        self._parquet = ParquetColumns(location, entry.file, layout)
        self.types = TypeTable(location, entry.types.path, layout)
        id_table = self._parquet.read(["sentence_id", "document_id", "length"])
        self.sentence_ids = id_table["sentence_id"].to_numpy() + shifts[0]
        self.document_ids = id_table["document_id"].to_numpy() + shifts[1]
        lengths = id_table["length"].to_numpy()
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if len(lengths) != entry.sentences or self.offsets[-1] != entry.tokens:
            raise ElmoError(
                f"{name}: has {len(lengths)} sentences and {self.offsets[-1]} tokens, but the "
                f"manifest says {entry.sentences} and {entry.tokens}; make the store again"
            )

    def close(self) -> None:
        """Close the files of the part and of its types."""
        self._parquet.close()
        self.types.close()

    @property
    def is_mapped(self) -> bool:
        """Tell whether the part is memory-mapped, so that no file is kept open for it."""
        return self._parquet.file_map is not None

    def find_row(self, sentence_id: int) -> int | None:
        """Return the row of a sentence, or None if the sentence is not in this part."""
        row = int(np.searchsorted(self.sentence_ids, sentence_id))
        is_present = row < len(self.sentence_ids) and self.sentence_ids[row] == sentence_id
        return row if is_present else None

    def type_ids(self, row: int) -> npt.NDArray[np.int32]:
        """Return the tokens of the sentence in row `row` as type ids, int32 (tokens,), which are
        rows of `types`."""
        return self._read_value(row, "types", TYPE_ID_DTYPE, 1)[:, 0]

    def tokens(self, row: int) -> list[str]:
        """Return the tokens of the sentence in row `row` of this part."""
        tokens: list[str] = self.types.tokens.take(pa.array(self.type_ids(row))).to_pylist()
        return tokens

    def record(self, row: int) -> str:
        """Return the kept columns of the record of row `row` as JSON; "" if there are none."""
        return self._records[row].as_py() if self._records is not None else ""

    @cached_property
    def _records(self) -> pa.StringArray | None:
        if not self._parquet.has_column("record"):
            return None
        return self._parquet.read(["record"])["record"].combine_chunks()

    def stored_vectors(self, row: int, layer: str) -> npt.NDArray[Any]:
        """Return a contextual layer of the sentence in row `row` as stored: (tokens, dim), in the
        store's dtype.

        The array may be a view of the mapped file, so it is read-only.
        """
        return self._read_value(row, layer, DTYPES[self._layout.dtype], self._layout.dim)

    def vectors(self, row: int, layers: Sequence[str]) -> Floats:
        """Return the vectors of the sentence in row `row`, float32 (layers, tokens, dim); `layers`
        are names."""
        return self.block(row, row + 1, layers).vectors

    def block(self, start: int, stop: int, layers: Sequence[str]) -> VectorBlock:
        """Return the vectors of the sentences in rows `start` to `stop - 1`; `layers` are names."""
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        ids = np.concatenate([self.type_ids(row) for row in range(start, stop)])
        vectors_LTD = np.empty((len(layers), len(ids), self._layout.dim), np.float32)
        for index, layer in enumerate(layers):
            if layer == "layer_0":
                x_TP = self.types.x_vectors(ids)
                np.concatenate([x_TP, x_TP], 1, out=vectors_LTD[index])
                continue
            for row in range(start, stop):
                row_TD = vectors_LTD[index, offsets[row - start] : offsets[row - start + 1]]
                to_float32(self.stored_vectors(row, layer), row_TD)
        return VectorBlock(self.sentence_ids[start:stop], offsets, ids, vectors_LTD)

    def blocks(self, layers: Sequence[str]) -> Iterator[VectorBlock]:
        """Yield the vectors of all sentences in order, in blocks that fit the CPU's cache; `layers`
        are names."""
        for start, stop in split_into_runs(self.offsets, _BLOCK_TOKENS):
            yield self.block(start, stop, layers)

    def _read_value(self, row: int, column: str, dtype: str, width: int) -> npt.NDArray[Any]:
        """Return the value of a row's binary column as an array (T, width)."""
        group = self._parquet.row_group_of(row)
        start, stop = self._parquet.group_starts[group : group + 2]
        stride = np.dtype(dtype).itemsize * width
        length = int(self.offsets[row + 1] - self.offsets[row])
        buffer = self._parquet.file_map
        if buffer is not None:
            size = 4 * (stop - start) + stride * int(self.offsets[stop] - self.offsets[start])
            base = self._parquet.value_offset(group, column, size)
            offset = base + 4 * (row - start)
            offset += stride * int(self.offsets[row] - self.offsets[start])
            prefix = int.from_bytes(buffer[offset : offset + 4], "little")
            if base >= 0 and prefix == length * stride:
                return np.frombuffer(buffer, dtype, length * width, offset + 4).reshape(
                    length, width
                )
        value = self._parquet.decode_column(group, column)[row - start].as_buffer()
        if value.size != length * stride:
            raise Damaged(
                f"{self._parquet.name}: altered ({column} of sentence {self.sentence_ids[row]} has "
                f"{value.size} bytes, not {length * stride}); run elmo verify"
            )
        return np.frombuffer(value, dtype).reshape(length, width)


def to_float32(values: npt.NDArray[Any], out: Floats) -> None:
    """Copy stored values (rows, columns) into the float32 array `out` of that shape; for float16,
    20 times as fast as numpy.

    Values are copied in small blocks, because torch would divide a large copy among threads.
    """
    import torch

    _allow_read_only()
    rows = max(1, _VALUES_PER_COPY // max(1, out.shape[1]))
    for start in range(0, len(out), rows):
        block = torch.from_numpy(values[start : start + rows])
        torch.from_numpy(out[start : start + rows]).copy_(block)


@cache
def _allow_read_only() -> None:
    """Silence torch's one-time warning that mapped arrays are read-only; they are never written."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(np.frombuffer(b"\0", np.int8))


def _map_file(location: Location, file: str) -> pa.Buffer | None:
    """Memory-map a local file, without keeping it open; return None for a URL or an empty file."""
    if location.local is None or not location.size(file):
        return None
    with pa.memory_map(str(location.local / file)) as stream:
        return stream.read_buffer()


def open_parquet(
    location: Location, file: str, *, file_map: pa.Buffer | None = None
) -> pq.ParquetFile:
    """Open a Parquet file, from the memory map `file_map` if given; raise `Damaged` if its footer
    cannot be read."""
    local_folder = location.local
    source: Any = None
    if file_map is not None:
        source = pa.BufferReader(file_map)
    else:
        source = str(local_folder / file) if local_folder is not None else location.open(file)
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise altered_error(location.path_of(file), first_line(error)) from None


def check_layout(name: str, schema: pa.Schema, layout: Layout) -> None:
    """Raise `Damaged`, which names the file `name`, if a Parquet schema does not match the layout
    in the store's manifest."""
    for key, value in layout_metadata(layout).items():
        actual = (schema.metadata or {}).get(f"elmo.{key}".encode(), b"nothing").decode()
        if actual != value:
            raise Damaged(
                f"{name}: has {key} {actual[:100]}, but the manifest's layout has {value[:100]}; "
                "restore the altered file, or make the store again"
            )
