"""The text of a span in blocks of lines, whatever the format of its file.

Each format accounts for the bytes of a file that are not text (JSON around it, a byte order mark)
and for newlines that are in a block but not in the file.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from .accounting import Accounting
from .formats import FORMATS, Records
from .input_files import InputFile
from .spans import FileSpan
from .utf8_lines import block_end


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of UTF-8, each ended by a newline.

    `records` is the number of each line's record, None in a file without records; `begins` tells
    whether the first line is the first of its file.
    """

    text: bytes
    records: Records | None
    begins: bool


def check_readable(input_: InputFile, column: str) -> None:
    """Read the head of a file; raise `ElmoError` if it is binary or lacks the column."""
    if input_.bytes:
        FORMATS[input_.format].load().check_head(input_, column)


def read_blocks(
    span: FileSpan, *, column: str, documents: str, size: int, accounting: Accounting
) -> Iterator[TextBlock]:
    """Yield the lines of a span in blocks of about `size` bytes of text.

    Bytes that are not text, such as the names of JSON fields, are counted in `accounting`. With
    `documents` "blank" a block ends where a document ends, unless one document fills it.
    """
    format_ = FORMATS[span.input.format]
    blocks = format_.load().blocks(span, size, column, documents, accounting)
    if documents == "blank" != format_.documents:
        blocks = _recut(blocks, size)
    for number, (text, records) in enumerate(blocks):
        yield TextBlock(text, records, begins=number == 0 and span.start == 0)


def _recut(
    blocks: Iterator[tuple[bytes, Records | None]], size: int
) -> Iterator[tuple[bytes, Records | None]]:
    """Recut blocks so that they end where documents between blank lines do."""
    rest = b""
    for text, _ in blocks:
        rest += text
        if cut := block_end(rest, size, "blank"):
            yield rest[:cut], None
            rest = rest[cut:]
    if rest:
        yield rest, None
