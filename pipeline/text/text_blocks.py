"""The text of a span in blocks of lines, for all formats of files.

Each format accounts for the bytes of a file that are not text, such as JSON or a byte order mark,
and for newlines that it adds.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from elmo.errors import ElmoError

from .accounting import Accounting
from .formats import FORMATS
from .input_files import InputFile, for_each
from .reader import KeptColumns, Records, load_reader
from .spans import FileSpan, file_as_span
from .utf8_lines import block_end


def check_texts(
    inputs: Sequence[InputFile],
    column: str,
    list_name: str = "in params.yaml",
    keep: KeptColumns = (),
) -> None:
    """Read the heads of files; raise `ElmoError` if some are binary or have no such column, or if
    none has text.

    `list_name` names the source of the list in messages, as in `find_inputs`.
    """
    files = [input_ for input_ in inputs if input_.bytes]
    for_each(lambda input_: load_reader(input_).check_head(input_, column, keep), files)
    if not any(_has_text(input_, column) for input_ in files):
        has_column = FORMATS[files[0].format].documents == "line"
        problem = f"no text in column {column!r}" if has_column else "has no text"
        raise ElmoError(f"{files[0].url}: {problem}; name files with text {list_name}")


def read_texts(path: Path, column: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of one file with their numbers, from 1: the lines of plain text, or records.

    Raises `ElmoError` if the file is not text.
    """
    input_ = InputFile(path.name, str(path), path.stat().st_size, "0" * 64)
    if input_.bytes:
        load_reader(input_).check_head(input_, column)
    (span,) = file_as_span(input_, 0)
    number = 0
    for block, records in read_blocks(
        span, column=column, document_rule="line", size=1 << 20, accounting=Accounting()
    ):
        lines = block.decode("utf-8").split("\n")[:-1]
        if records is None:
            yield from enumerate(lines, number + 1)
            number += len(lines)
            continue
        begins = np.flatnonzero(np.diff(records.numbers, prepend=-1))
        for begin, end in pairwise([*begins.tolist(), len(lines)]):
            number += 1
            yield number, "\n".join(lines[begin:end])


def _has_text(input_: InputFile, column: str) -> bool:
    (span,) = file_as_span(input_, 0)
    blocks = read_blocks(
        span, column=column, document_rule="line", size=1 << 16, accounting=Accounting()
    )
    return any(block.strip() for block, _ in blocks)


def read_blocks(
    span: FileSpan,
    *,
    column: str,
    document_rule: str,
    size: int,
    accounting: Accounting,
    keep: KeptColumns = (),
) -> Iterator[tuple[bytes, Records | None]]:
    """Return the lines of a span in blocks of about `size` bytes of text, with their records.

    A block is whole lines of UTF-8, each ended by a newline; a file without records has None.
    `column` is the column or field that holds the text of records, `keep` others that are kept.
    Bytes that are read, and those that are not text, such as the names of JSON fields, are counted
    in `accounting`. With `document_rule` "blank" a block ends where a document ends, unless one
    document fills it.
    """
    blocks = load_reader(span.input).blocks(span, size, column, document_rule, accounting, keep)
    needs_recut = document_rule == "blank" != FORMATS[span.input.format].documents
    return _recut(blocks, size) if needs_recut else blocks


def _recut(
    blocks: Iterator[tuple[bytes, Records | None]], size: int
) -> Iterator[tuple[bytes, Records | None]]:
    """Recut blocks so that they end where documents between blank lines do."""
    pending = b""
    for text, _ in blocks:
        pending += text
        if cut := block_end(pending, size, "blank"):
            yield pending[:cut], None
            pending = pending[cut:]
    if pending:
        yield pending, None
