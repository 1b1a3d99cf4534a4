"""Documents: the units of text that are held out or trained on as a whole.

The code that divides text into spans and blocks (`utf8_lines.block_end`) follows the same rule.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .accounting import Accounting
from .reader import ReadOptions, Records, load_reader
from .spans import FileSpan
from .text_hashes import Hashes, hash_runs
from .text_rows import TextRows, find_lines

_HASHED_BYTES = 1 << 16  # the hash of a document covers this many bytes at its beginning


class DocumentBlock(NamedTuple):
    """A block of a text with its lines and the documents that begin in it.

    `file` is the name of its file. `lines` has the start and end of each line, `rows` their text,
    and `records` their records (None in a file without records). `document_numbers` has the number
    of each line's document, from 1; 0 is the document that continues from the previous block.
    `hashes` has the hash of each document (0 if it has no text).
    """

    file: str
    text: bytes
    records: Records | None
    lines: tuple[Int64s, Int64s]
    rows: TextRows
    document_numbers: Int64s
    hashes: Hashes


def read_documents(
    span: FileSpan, options: ReadOptions, accounting: Accounting
) -> Iterator[DocumentBlock]:
    """Yield the blocks of a span with their documents; the arguments are those of `Reader.blocks`.

    The hash of a document covers the lines that begin in its first 64 KiB; with `document_rule`
    "file", it is taken from the file's digest.
    """
    blocks, document_rule = load_reader(span.input).blocks, options.document_rule
    is_after_blank = is_after_text = False
    for block_index, (text, records) in enumerate(blocks(span, options, accounting)):
        lines = find_lines(text)
        rows = TextRows.find(text, lines)
        is_blank = rows.counts == 0
        is_start = np.zeros(len(is_blank), bool)
        if document_rule == "blank":
            follows_blank = np.append(is_after_blank, is_blank[:-1])
            follows_text = np.append(is_after_text, ~is_blank).cumsum()[:-1] > 0
            is_start = ~is_blank & follows_blank & follows_text
            is_after_text = bool(follows_text[-1] or not is_blank[-1])
            is_after_blank = bool(is_blank[-1])
        elif document_rule == "line" and records is not None:
            is_start = np.diff(records.numbers, prepend=-1) > 0
        elif document_rule == "line":
            is_start = ~is_start
        is_start[0] |= block_index == 0
        document_numbers = np.cumsum(is_start, dtype=np.int64)
        if document_rule == "file":
            hashes = np.array([int(span.input.sha256[:16], 16)], np.uint64)[: document_numbers[-1]]
        else:
            hashes = _hash_documents(lines[0], rows.hashes, is_start, document_numbers)
        yield DocumentBlock(span.input.name, text, records, lines, rows, document_numbers, hashes)


def _hash_documents(
    starts: Int64s, line_hashes: Hashes, is_start: npt.NDArray[np.bool_], document_numbers: Int64s
) -> Hashes:
    """Return the hash of each document, computed from the hashes of its first lines."""
    if is_start.all():
        return line_hashes
    limits = np.append(0, starts[is_start] + _HASHED_BYTES)[document_numbers]
    is_hashed = (line_hashes != 0) & (starts < limits)
    counts = np.bincount(document_numbers[is_hashed], minlength=document_numbers[-1] + 1)[1:]
    return hash_runs(line_hashes[is_hashed], counts)
