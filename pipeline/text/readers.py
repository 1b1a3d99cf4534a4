"""The lines of a span.

Whatever the format, a reader yields blocks of whole UTF-8 lines, each ended by a newline, and
accounts for which bytes of a file are not text (JSON around it, a byte order mark) and which
newlines are in the block but not in the file.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from elmo.settings import LONGEST_LINE

from ..terminal.failures import reading
from .accounting import Accounting
from .inputs import Input, open_input, read_bytes
from .spans import BLANK_LINES, FileSpan, open_parquet

BLOCK = 4 << 20


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of UTF-8, each ended by a newline.

    `records` gives each line the number of its record where records and lines differ; `begins`
    says whether the first line is the first of its input.
    """

    text: bytes
    records: npt.NDArray[np.int64] | None
    begins: bool


def check_readable(input_: Input, column: str) -> None:
    """Look at the head of a file: `ElmoError` where it is binary or lacks the column."""
    if not input_.bytes:
        return
    if input_.format == "parquet":
        with open_parquet(input_) as file:
            _check_column(input_, file, column)
        return
    with open_input(input_.url, compression=input_.compression) as file:
        head = read_bytes(input_, file, 1 << 16)
    _check_no_nul(input_, head, 0)
    if input_.format == "jsonl":
        span = FileSpan(input_, 0, 0, input_.bytes if input_.compression is None else -1, 0)
        for _ in _json_blocks(span, 1 << 16, column, Accounting()):
            break


def read_blocks(
    span: FileSpan, *, column: str, documents: str, size: int, accounting: Accounting
) -> Iterator[TextBlock]:
    """Yield a span's lines in blocks of about `size` bytes; `accounting` gains what is no text.

    With `documents` "blank" a document begun in a block ends there or fills the block.
    """
    format_ = span.input.format
    blocks: Iterator[tuple[bytes, npt.NDArray[np.int64] | None]]
    if format_ == "text":
        blocks = _text_blocks(span, size, documents, accounting)
    elif format_ == "jsonl":
        blocks = _json_blocks(span, size, column, accounting)
    else:
        blocks = _parquet_blocks(span, size, column, accounting)
    if documents == "blank" and format_ != "text":
        blocks = _recut(blocks, size)
    for number, (text, records) in enumerate(blocks):
        yield TextBlock(text, records, begins=number == 0 and span.start == 0)


def _text_blocks(
    span: FileSpan, size: int, documents: str, accounting: Accounting
) -> Iterator[tuple[bytes, None]]:
    for text, offset in _raw_blocks(span, size, documents):
        _check_utf8(span, text, offset)
        accounting.bytes += len(text)
        if offset == 0 and text.startswith(codecs.BOM_UTF8):
            accounting.mark += len(codecs.BOM_UTF8)
            text = text[len(codecs.BOM_UTF8) :]
            if not text:
                continue
        if not text.endswith(b"\n"):
            accounting.added += 1
            text += b"\n"
        yield text, None


def _recut(
    blocks: Iterator[tuple[bytes, Any]], size: int
) -> Iterator[tuple[bytes, npt.NDArray[np.int64] | None]]:
    """The same text, in blocks that end where documents between blank lines do."""
    rest = b""
    for text, _ in blocks:
        rest += text
        if cut := _cut(rest, size, "blank"):
            yield rest[:cut], None
            rest = rest[cut:]
    if rest:
        yield rest, None


def _json_blocks(
    span: FileSpan, size: int, column: str, accounting: Accounting
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    first = 0
    for raw, offset in _raw_blocks(span, size, "line"):
        _check_utf8(span, raw, offset)
        lines = raw.removesuffix(b"\n").split(b"\n")
        texts = []
        seen = offset
        for line in lines:
            try:
                texts.append(_field(line, column))
            except ValueError as error:
                where = f"{span.input.url}:{_line_number(span, seen)}"
                raise ElmoError(f"{where}: {error}") from None
            seen += len(line) + 1
        accounting.bytes += len(raw)
        accounting.added += not raw.endswith(b"\n")
        accounting.fields += sum(map(len, lines)) - sum(map(len, texts))
        yield _joined(texts, first)
        first += len(texts)


def _parquet_blocks(
    span: FileSpan, size: int, column: str, accounting: Accounting
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    first = 0
    with open_parquet(span.input) as file:
        groups = list(range(span.start, file.num_row_groups if span.end < 0 else span.end))
        _check_column(span.input, file, column)
        rows = _rows_at_a_time(file, groups, size)
        batches = file.iter_batches(batch_size=rows, row_groups=groups, columns=[column])
        while True:
            with reading(span.input.url, "damaged"):
                batch = next(batches, None)
                if batch is None:
                    break
                values = batch.column(0).cast(pa.large_binary())
            longest = pc.max(pc.binary_length(values)).as_py() or 0
            if longest > LONGEST_LINE:
                raise ElmoError(f"{span.input.url}: {_too_long('a value of its column', longest)}")
            texts = [value or b"" for value in values.to_pylist()]
            for row, text in enumerate(texts):
                if not _is_utf8(text):
                    where = f"{span.input.url}: row {first + row} of row group {span.start} on"
                    raise ElmoError(f"{where} is not UTF-8; write the column as strings")
            accounting.bytes += sum(map(len, texts))
            accounting.added += len(texts)
            yield _joined(texts, first)
            first += len(texts)


def _rows_at_a_time(file: Any, groups: list[int], size: int) -> int:
    """Return how many rows of a Parquet file have about `size` bytes."""
    sizes = [file.metadata.row_group(i) for i in groups]
    rows, bytes_ = sum(g.num_rows for g in sizes), sum(g.total_byte_size for g in sizes)
    return max(1, min(4096, max(size, 1 << 20) * rows // max(1, bytes_)))


def _joined(texts: list[bytes], first: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Records as lines, and the number of the record each line is of."""
    lines = [text.count(b"\n") + 1 for text in texts]
    records = np.repeat(np.arange(first, first + len(texts), dtype=np.int64), lines)
    return b"".join(text + b"\n" for text in texts), records


def _field(line: bytes, column: str) -> bytes:
    """The text of one JSON line; a blank line or null is an empty text, and keeps its number."""
    if not line.strip():
        return b"" if not line else line
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict) or column not in record:
        fields = f", found {_first_names(record)}" if isinstance(record, dict) and record else ""
        raise ValueError(f"no field {column!r} in this record{fields}; set corpus.column")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"field {column!r} must be a string, found {type(text).__name__}")
    try:
        return (text or "").encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"field {column!r} holds half a surrogate pair, no character") from None


def _raw_blocks(span: FileSpan, size: int, documents: str) -> Iterator[tuple[bytes, int]]:
    """Whole lines of a span, about `size` bytes at a time, and where each block begins."""
    offset, left = span.start, span.end - span.start if span.end >= 0 else -1
    with open_input(span.input.url, compression=span.input.compression) as file:
        if offset:
            file.seek(offset)
        rest = b""
        while True:
            want = size if left < 0 else min(size, left)
            # At least as much again, or a long line would be copied for each block it is in.
            want = max(want, min(len(rest), left if left >= 0 else len(rest), LONGEST_LINE))
            more = read_bytes(span.input, file, want) if want else b""
            left -= len(more) if left > 0 else 0
            if not more:
                break
            rest += more
            if len(rest) > LONGEST_LINE:
                _check_lines(span, rest, offset)
            cut = _cut(rest, size, documents)
            if cut:
                yield rest[:cut], offset
                offset, rest = offset + cut, rest[cut:]
    if rest:
        yield rest, offset


def _check_lines(span: FileSpan, text: bytes, offset: int) -> None:
    start = 0
    for line in text.split(b"\n"):
        if len(line) > LONGEST_LINE:
            number = _line_number(span, offset + start)
            raise ElmoError(f"{span.input.url}:{number}: {_too_long('this line', len(line))}")
        start += len(line) + 1


def _too_long(what: str, size: int) -> str:
    return (
        f"{what} has {size / 1e6:,.0f} MB or more; the limit is {LONGEST_LINE >> 20} MiB: "
        "divide it at line ends"
    )


def _cut(text: bytes, size: int, documents: str) -> int:
    """Return where to end a block: after its last document, or else its last line (0: read on)."""
    if documents == "blank":
        ends = [match.end() for match in BLANK_LINES.finditer(text)]
        if ends:
            return ends[-1]
        if len(text) < size:
            return 0
    return text.rfind(b"\n") + 1


def _check_column(input_: Input, file: Any, column: str) -> None:
    import pyarrow as pa

    with reading(input_.url, "not a whole Parquet file"):
        schema = file.schema_arrow
    if column not in schema.names:
        raise ElmoError(
            f"{input_.url}: no column {column!r}, found {_first_names(schema.names)}; "
            "set corpus.column"
        )
    if schema.names.count(column) > 1:
        raise ElmoError(
            f"{input_.url}: has {schema.names.count(column)} columns {column!r}; rename all but one"
        )
    type_ = schema.field(column).type
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        raise ElmoError(f"{input_.url}: column {column!r} must hold strings, found {type_}")


def _first_names(names: Iterable[str]) -> str:
    """A few of the names, for a message."""
    names = [str(name) for name in names]
    return ", ".join(name[:60] for name in names[:12]) + (", …" if len(names) > 12 else "")


def _check_utf8(span: FileSpan, text: bytes, offset: int) -> None:
    nul = text.find(0)
    if nul >= 0:
        _check_no_nul(span.input, text[nul : nul + 1], _line_number(span, offset + nul))
    if _is_utf8(text):
        return
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = _line_number(span, offset + error.start)
        start = text.rfind(b"\n", 0, error.start) + 1
        raise ElmoError(
            f"{span.input.url}:{line}: byte {error.start - start + 1} of the line "
            f"(0x{text[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from None


def _check_no_nul(input_: Input, text: bytes, line: int) -> None:
    if 0 in text:
        raise ElmoError(
            f"{input_.url}:{line or text.count(10, 0, text.index(0)) + 1}: holds a zero byte, as "
            "UTF-16 and files that are not text do; save the file as UTF-8"
        )


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    import pyarrow as pa

    whole = pa.py_buffer(np.array([0, len(text)], np.int32))
    try:
        pa.StringArray.from_buffers(1, whole, pa.py_buffer(text)).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _line_number(span: FileSpan, offset: int) -> int:
    """The number, from 1, of the line that holds byte `offset` of the (uncompressed) file."""
    line = 1
    with open_input(span.input.url, compression=span.input.compression) as file:
        while offset > 0 and (block := read_bytes(span.input, file, min(offset, BLOCK))):
            line += block.count(b"\n")
            offset -= len(block)
    return line
