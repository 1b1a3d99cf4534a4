"""The parts of a text that are worked on apart, and their lines.

Whatever the format, a reader yields blocks of whole UTF-8 lines, each ended by a newline, and
keeps the books: which bytes of a file are not text (JSON around it, a byte order mark) and which
newlines stand in the block but not in the file.
"""

import codecs
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from pipeline.inputs import Input, open_input

BLOCK = 4 << 20
_DAMAGE = (EOFError, OSError, lzma.LZMAError)
_BLANK = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+(?=[ \t\r\f\v]*\S)")


@dataclass(frozen=True)
class Span:
    """A part of one input: bytes of a plain file, row groups of a Parquet one; `end` -1: the rest.

    `document` is the input's place in the corpus, `size` about how many bytes of text are in it.
    """

    input: Input
    document: int
    start: int
    end: int
    size: int


@dataclass(frozen=True)
class Block:
    """Whole lines of UTF-8, each ended by a newline.

    `records` gives each line the number of its record where records and lines differ; `begins`
    says whether the first line is the first of its input.
    """

    text: bytes
    records: npt.NDArray[np.int64] | None
    begins: bool


def plan(inputs: Sequence[Input], *, shard_bytes: int, documents: str) -> list[tuple[Span, ...]]:
    """Divide inputs into pieces of about `shard_bytes` of text: large files at line ends.

    Follows from the inputs and the arguments alone. With `documents` "blank" no document is
    divided. Small files share a piece.
    """
    pieces: list[tuple[Span, ...]] = []
    gathered: list[Span] = []
    for place, found in enumerate(inputs):
        for span in _spans(found, place, shard_bytes, documents):
            if gathered and sum(s.size for s in gathered) + span.size > shard_bytes:
                pieces.append(tuple(gathered))
                gathered = []
            gathered.append(span)
    return [*pieces, tuple(gathered)] if gathered else pieces


def read_blocks(
    span: Span, *, column: str, documents: str, size: int, books: Counter[str]
) -> Iterator[Block]:
    """Yield a span's lines in blocks of about `size` bytes, adding to `books` what is no text.

    Books: `bytes` in all, of them `fields` (JSON around the text) and `mark` (a byte order mark);
    `added` newlines are in the blocks but not among the bytes. With `documents` "blank" a
    document begun in a block ends there or fills the block.
    """
    format_ = span.input.format
    if format_ == "text":
        blocks = _text_blocks(span, size, documents, books)
    elif format_ == "jsonl":
        blocks = _json_blocks(span, size, column, books)
    else:
        blocks = _parquet_blocks(span, size, column, books)
    if documents == "blank" and format_ != "text":
        blocks = _recut(blocks, size)
    for number, (text, records) in enumerate(blocks):
        yield Block(text, records, begins=number == 0 and span.start == 0)


def _text_blocks(
    span: Span, size: int, documents: str, books: Counter[str]
) -> Iterator[tuple[bytes, None]]:
    for text, place in _raw_blocks(span, size, documents):
        _check_utf8(span, text, place)
        books["bytes"] += len(text)
        if place == 0 and text.startswith(codecs.BOM_UTF8):
            books["mark"] += len(codecs.BOM_UTF8)
            text = text[len(codecs.BOM_UTF8) :]
            if not text:
                continue
        if not text.endswith(b"\n"):
            books["added"] += 1
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
    span: Span, size: int, column: str, books: Counter[str]
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    first = 0
    for raw, place in _raw_blocks(span, size, "line"):
        _check_utf8(span, raw, place)
        lines = raw.removesuffix(b"\n").split(b"\n")
        texts = []
        seen = place
        for line in lines:
            try:
                texts.append(_field(line, column))
            except ValueError as error:
                where = f"{span.input.url}:{_line_number(span, seen)}"
                raise ElmoError(f"{where}: {error}") from None
            seen += len(line) + 1
        books["bytes"] += len(raw)
        books["added"] += not raw.endswith(b"\n")
        books["fields"] += sum(map(len, lines)) - sum(map(len, texts))
        yield _joined(texts, first)
        first += len(texts)


def _parquet_blocks(
    span: Span, size: int, column: str, books: Counter[str]
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    import pyarrow as pa

    first = 0
    with _parquet(span.input) as file:
        groups = range(span.start, file.num_row_groups if span.end < 0 else span.end)
        _check_column(span.input, file, column)
        for batch in file.iter_batches(batch_size=4096, row_groups=list(groups), columns=[column]):
            values = batch.column(0).cast(pa.large_binary())
            texts = [value or b"" for value in values.to_pylist()]
            for row, text in enumerate(texts):
                if not _is_utf8(text):
                    where = f"{span.input.url}: row {first + row} of row group {span.start} on"
                    raise ElmoError(f"{where} is not UTF-8; write the column as strings")
            books["bytes"] += sum(map(len, texts))
            books["added"] += len(texts)
            yield _joined(texts, first)
            first += len(texts)


def _joined(texts: list[bytes], first: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Records as lines, and the number of the record each line is of."""
    lines = [text.count(b"\n") + 1 for text in texts]
    records = np.repeat(np.arange(first, first + len(texts), dtype=np.int64), lines)
    return b"".join(text + b"\n" for text in texts), records


def _field(line: bytes, column: str) -> bytes:
    """The text of one JSON line; a blank line or null is no text, and keeps its place."""
    if not line.strip():
        return b"" if not line else line
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(record, dict) or column not in record:
        raise ValueError(f"no field {column!r} in this record; name the column in params.yaml")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"field {column!r} must be a string, found {type(text).__name__}")
    try:
        return (text or "").encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"field {column!r} holds half a surrogate pair, no character") from None


def _raw_blocks(span: Span, size: int, documents: str) -> Iterator[tuple[bytes, int]]:
    """Whole lines of a span, about `size` bytes at a time, and where each block begins."""
    place, left = span.start, span.end - span.start if span.end >= 0 else -1
    with open_input(span.input.url, compression=span.input.compression) as file:
        if place:
            file.seek(place)
        rest = b""
        while True:
            want = size if left < 0 else min(size, left)
            more = _read(span, file, want) if want else b""
            left -= len(more) if left > 0 else 0
            if not more:
                break
            rest += more
            cut = _cut(rest, size, documents)
            if cut:
                yield rest[:cut], place
                place, rest = place + cut, rest[cut:]
    if rest:
        yield rest, place


def _read(span: Span, file: BinaryIO, size: int) -> bytes:
    try:
        return file.read(size)
    except _DAMAGE as error:
        if span.input.compression is None:
            raise
        what = f"truncated or not {span.input.compression} ({_first_line(error)})"
        raise ElmoError(f"{span.input.url}: {what}; restore the file") from None


def _cut(text: bytes, size: int, documents: str) -> int:
    """Where to end a block: after its last document, or else its last line (0: read on)."""
    if documents == "blank":
        ends = [match.end() for match in _BLANK.finditer(text)]
        if ends:
            return ends[-1]
        if len(text) < size:
            return 0
    return text.rfind(b"\n") + 1


def _spans(found: Input, place: int, size: int, documents: str) -> list[Span]:
    if not found.bytes:
        return []
    if found.format == "parquet":
        return _row_groups(found, place, size, documents)
    if found.compression is not None:
        return [Span(found, place, 0, -1, 4 * found.bytes)]
    if found.bytes <= size or (found.format, documents) == ("jsonl", "blank"):
        return [Span(found, place, 0, found.bytes, found.bytes)]
    starts = [0]
    with open_input(found.url) as file:
        for wanted in range(size, found.bytes, size):
            if wanted > starts[-1]:
                starts.append(_next_start(file, wanted, documents))
    starts = [start for start in starts if start < found.bytes]
    ends = [*starts[1:], found.bytes]
    return [Span(found, place, a, b, b - a) for a, b in zip(starts, ends, strict=True)]


def _next_start(file: BinaryIO, place: int, documents: str) -> int:
    """The first byte at or after `place` where a line, or a document, begins."""
    file.seek(place - 1)
    rest = b""
    begin = place - 1
    while more := file.read(1 << 16):
        rest += more
        if documents == "blank":
            match = _BLANK.search(rest)
            if match:
                return begin + match.end()
            last = rest.rfind(b"\n", 0, len(rest.rstrip()))
            cut = len(rest) if b"\n" not in rest else max(last, 0)
        else:
            if b"\n" in rest:
                return begin + rest.index(b"\n") + 1
            cut = len(rest)
        begin, rest = begin + cut, rest[cut:]
    return begin + len(rest)


def _row_groups(found: Input, place: int, size: int, documents: str) -> list[Span]:
    with _parquet(found) as file:
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    if documents == "blank" or sum(groups) <= size:
        return [Span(found, place, 0, -1, sum(groups))]
    return [Span(found, place, i, i + 1, bytes_) for i, bytes_ in enumerate(groups)]


def _parquet(found: Input) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(open_input(found.url))
    except pa.ArrowInvalid as error:
        raise ElmoError(f"{found.url}: not a whole Parquet file ({_first_line(error)})") from None


def _check_column(found: Input, file: Any, column: str) -> None:
    import pyarrow as pa

    names = file.schema_arrow.names
    if column not in names:
        raise ElmoError(f"{found.url}: no column {column!r}, found {', '.join(names)}")
    type_ = file.schema_arrow.field(column).type
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
        raise ElmoError(f"{found.url}: column {column!r} must hold strings, found {type_}")


def _check_utf8(span: Span, text: bytes, place: int) -> None:
    if _is_utf8(text):
        return
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        line = _line_number(span, place + error.start)
        start = text.rfind(b"\n", 0, error.start) + 1
        raise ElmoError(
            f"{span.input.url}:{line}: byte {error.start - start + 1} of the line "
            f"(0x{text[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from None


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


def _line_number(span: Span, place: int) -> int:
    """The number, from 1, of the line that holds byte `place` of the (uncompressed) file."""
    line = 1
    with open_input(span.input.url, compression=span.input.compression) as file:
        while place > 0 and (block := file.read(min(place, BLOCK))):
            line += block.count(b"\n")
            place -= len(block)
    return line


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
