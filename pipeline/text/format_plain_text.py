"""The plain text format: each line of the file is a line of text."""

import codecs
from collections.abc import Iterator

from .accounting import Accounting
from .input_files import InputFile, open_input, read_bytes
from .spans import FileSpan
from .spans import line_spans as spans
from .utf8_lines import check_no_nul, check_utf8, raw_blocks

__all__ = ["blocks", "check_head", "spans"]


def check_head(input_: InputFile, column: str) -> None:
    """Raise `ElmoError` for a file whose head is binary."""
    with open_input(input_.url, compression=input_.compression) as file:
        check_no_nul(input_, read_bytes(input_, file, 1 << 16), 0)


def blocks(
    span: FileSpan, size: int, column: str, documents: str, accounting: Accounting
) -> Iterator[tuple[bytes, None]]:
    """Yield the lines of a span in blocks, without a byte order mark.

    With `documents` "blank" a block ends where a document does.
    """
    for text, offset in raw_blocks(span, size, documents):
        check_utf8(span, text, offset)
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
