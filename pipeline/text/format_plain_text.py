"""The plain text format: each line of the file is a line of text."""

import codecs
from collections.abc import Iterator

from .accounting import Accounting
from .input_files import InputFile, read_head
from .other_formats import check_plain_text
from .reader import ReadOptions
from .spans import FileSpan
from .spans import line_spans as spans
from .utf8_lines import check_no_nul, check_utf8, raw_blocks

__all__ = ["blocks", "check_head", "spans"]


def check_head(input_: InputFile, options: ReadOptions) -> None:
    """Raise `ElmoError` if the head of a file shows that it is not plain text."""
    head = read_head(input_)
    check_plain_text(input_.url, head)
    check_no_nul(input_, head, 0)


def blocks(
    span: FileSpan, options: ReadOptions, accounting: Accounting
) -> Iterator[tuple[bytes, None]]:
    """Yield a span's lines in blocks, as `Reader.blocks` says, each with None."""
    for text, offset in raw_blocks(span, options.size, options.document_rule):
        check_utf8(span, text, offset)
        accounting.bytes += len(text)
        if offset == 0 and text.startswith(codecs.BOM_UTF8):
            accounting.mark += len(codecs.BOM_UTF8)
            text = text[len(codecs.BOM_UTF8) :]
            if not text:
                continue
        if not text.endswith(b"\n"):
            accounting.added_newlines += 1
            text += b"\n"
        yield text, None
