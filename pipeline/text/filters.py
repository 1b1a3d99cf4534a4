"""Filters: documents to leave out by the limits in the settings."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from ..settings.params import TokenizeSettings
from .characters import KIND_COUNT, SCRIPTS, SPACE, SYMBOL, find_kinds
from .documents import DocumentBlock

# By reason to leave a document out: the setting, its value if the filter is off, and a usual value;
# the usual scripts depend on the text.
FILTERS: dict[str, tuple[str, Any, Any]] = {
    "short": ("min_bytes", 0, 100),
    "long": ("max_bytes", 0, 1_000_000),
    "symbols": ("max_symbols", 1.0, 0.3),
    "script": ("scripts", (), ()),
}


class DocumentCounts(NamedTuple):
    """The documents of a piece: the lines, the size and the characters of each.

    `lines` has each document's first line and the line after its last one, numbered in the piece.
    `sizes` has its bytes without line ends, and `kinds` the character counts (documents, kinds).
    """

    lines: Int64s
    sizes: Int64s
    kinds: npt.NDArray[np.int32]

    @property
    def symbol_shares(self) -> npt.NDArray[np.float64]:
        """Return the share of symbols in each document, not counting white space."""
        return self.kinds[:, SYMBOL] / np.maximum(self.kinds[:, :SPACE].sum(1), 1)

    @property
    def scripts(self) -> Int64s:
        """Return the script with most letters in each document; -1 if a document has no letters."""
        letters = self.kinds[:, :SYMBOL]
        return np.where(letters.any(1), letters.argmax(1), -1)


def is_filtering(params: TokenizeSettings) -> bool:
    """Tell whether a filter is on."""
    return any(getattr(params, name) != off_value for name, off_value, _ in FILTERS.values())


def count_documents(block: DocumentBlock, first_line: int) -> DocumentCounts:
    """Count the documents of a block, whose first line has the number `first_line` in the piece."""
    starts = np.flatnonzero(np.diff(block.document_numbers, prepend=-1))
    ends = np.append(starts[1:], len(block.document_numbers))
    kinds = find_kinds(block.text.decode("utf-8"))
    utf8 = np.frombuffer(block.text, np.uint8)
    character_ends = np.cumsum(utf8 & 0xC0 != 0x80)[block.lines[1][ends - 1]]  # not in bytes
    owners = np.repeat(np.arange(len(character_ends)), np.diff(character_ends, prepend=0))
    counts = np.bincount(owners * KIND_COUNT + kinds, minlength=len(character_ends) * KIND_COUNT)
    sizes = np.add.reduceat(block.lines[1] - block.lines[0], starts)
    lines = first_line + np.stack([starts, ends], 1)
    return DocumentCounts(lines, sizes, counts.reshape(-1, KIND_COUNT).astype(np.int32))


def join_counts(counts: Sequence[DocumentCounts], ids: Sequence[Int64s]) -> DocumentCounts:
    """Join the counts of a piece's blocks; `ids` has the numbers of the documents of each."""
    if not any(map(len, ids)):
        empty_lines = np.zeros((0, 2), np.int64)
        return DocumentCounts(empty_lines, empty_lines[:, 0], np.zeros((0, KIND_COUNT), np.int32))
    starts = np.flatnonzero(np.diff(np.concatenate(ids), prepend=-1))
    lines, sizes, kinds = map(np.concatenate, zip(*counts, strict=True))
    ends = np.append(starts[1:], len(lines)) - 1
    lines = np.stack([lines[starts, 0], lines[ends, 1]], 1)
    return DocumentCounts(lines, np.add.reduceat(sizes, starts), np.add.reduceat(kinds, starts))


def find_filtered(
    documents: DocumentCounts, params: TokenizeSettings, file_size: int = 0
) -> dict[str, Int64s]:
    """Return the lines of the documents to leave out, as ranges by reason.

    Documents without text are not left out. If the piece is a part of a document, `file_size` is
    the size of the whole document.
    """
    sizes = np.maximum(documents.sizes, file_size)
    scripts = documents.scripts
    wanted_scripts = [-1, *(SCRIPTS.index(name) for name in params.scripts)]
    is_left_out = {
        "short": sizes < params.min_bytes,
        "long": (sizes > params.max_bytes) & (params.max_bytes > 0),
        "symbols": documents.symbol_shares > params.max_symbols,
        "script": ~np.isin(scripts, wanted_scripts) & bool(params.scripts),
    }
    has_text = documents.kinds[:, :SPACE].any(1)
    return {reason: documents.lines[mask & has_text] for reason, mask in is_left_out.items()}
