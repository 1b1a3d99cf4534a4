"""Divide input files into spans, parts that tasks read in any order."""

import re
import sys
from dataclasses import dataclass

from elmo.io.location import in_parallel

from .formats import FORMATS
from .input_files import InputFile, open_input, read_chunk

COMPRESSION_RATIO = 4  # bytes of text per byte of a compressed file, about
_NEAR_BYTES = 1 << 20  # the next document or line usually begins within this distance
BLANK_LINES = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+(?=[ \t\r\f\v]*\S)")


@dataclass(frozen=True)
class FileSpan:
    """A part of one input file: bytes `start` to `stop`, or row groups of a Parquet file.

    `stop` is not included; -1 is the end of the file. `file_number` is the number of the file among
    those with text; `size` is the approximate size of the span's text in bytes.
    """

    input: InputFile
    file_number: int
    start: int
    stop: int
    size: int


def text_bytes(input_: InputFile) -> int:
    """Return the approximate size of a file's text in bytes."""
    is_compressed = input_.compression is not None or FORMATS[input_.format].is_compressed
    return input_.bytes * COMPRESSION_RATIO if is_compressed else input_.bytes


def file_as_span(input_: InputFile, file_number: int) -> FileSpan:
    """Return the whole file, number `file_number` of the corpus, as one span."""
    return FileSpan(input_, file_number, 0, -1, text_bytes(input_))


def line_spans(
    input_: InputFile, file_number: int, size: int, document_rule: str
) -> list[FileSpan]:
    """Divide file number `file_number` of the corpus into spans of about `size` bytes.

    Spans end at line ends or, for `document_rule` "blank", blank lines. A compressed file is one.
    """
    if input_.compression is not None:
        return [file_as_span(input_, file_number)]
    if input_.bytes <= size:
        return [FileSpan(input_, file_number, 0, input_.bytes, input_.bytes)]
    cuts = range(size, input_.bytes, size)  # each cut may take a request
    near_starts = in_parallel(
        lambda cut: _next_start(input_, cut, document_rule, limit=_NEAR_BYTES), cuts
    )
    starts = [0]
    for cut, start in zip(cuts, near_starts, strict=True):
        if cut > starts[-1]:
            starts.append(_next_start(input_, cut, document_rule) if start < 0 else start)
    starts = [start for start in starts if start < input_.bytes]
    bounds = zip(starts, [*starts[1:], input_.bytes], strict=True)
    return [FileSpan(input_, file_number, start, stop, stop - start) for start, stop in bounds]


def _next_start(
    input_: InputFile, offset: int, document_rule: str, *, limit: int = sys.maxsize
) -> int:
    """Return the offset of the first line or document that begins at `offset` or later; -1 if none
    begins in the next `limit` bytes."""
    text = b""
    text_start = offset - 1
    with open_input(input_.url) as file:
        file.seek(text_start)
        while block := read_chunk(input_, file, 1 << 16):
            text += block
            if document_rule == "blank":
                match = BLANK_LINES.search(text)
                if match:
                    return text_start + match.end()
                last_newline = text.rfind(b"\n", 0, len(text.rstrip()))
                bytes_used = len(text) if b"\n" not in text else max(last_newline, 0)
            else:
                if b"\n" in text:
                    return text_start + text.index(b"\n") + 1
                bytes_used = len(text)
            text_start, text = text_start + bytes_used, text[bytes_used:]
            if text_start + len(text) >= offset + limit:
                return -1
    return text_start + len(text)
