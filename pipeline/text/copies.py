"""Copies in a text: documents and lines that come again, found by their hashes before it is cut.

Only what has 256 bytes or more is taken for a copy: shorter texts, such as an answer or a heading,
are written again and again by people.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s
from elmo.errors import ElmoError

from .accounting import Accounting
from .documents import Documents
from .formats import document_rule
from .pieces import Piece
from .text_blocks import read_blocks
from .text_hashes import Hashes, hash_runs
from .text_rows import TextRows, find_lines
from .utf8_lines import BLOCK

LEAST = 256  # bytes of a document or line from which it can be a copy


@dataclass(frozen=True)
class Passages:
    """The documents and lines of a piece that have `LEAST` bytes: their hashes and lines.

    `lines` are, of each, the numbers of its first line and of the line after it in the piece.
    """

    hashes: Hashes
    lines: Int64s


def find_passages(piece: Piece) -> Passages | ElmoError:
    """Return the passages of a piece, or the error of a file that cannot be read."""
    try:
        return _passages(piece)
    except ElmoError as error:
        return error


def _passages(piece: Piece) -> Passages:
    documents, first = Documents(), 0
    hashes, ranges = [np.zeros(0, np.uint64)], [np.zeros((0, 2), np.int64)]
    for span in piece.spans:
        rule = document_rule(piece.sides.documents, span.input.format)
        size = min(BLOCK, piece.params.shard_bytes)
        for block in read_blocks(
            span, column=piece.column, documents=rule, size=size, accounting=Accounting()
        ):
            lines = find_lines(block.text)
            rows = TextRows.of(block.text, lines)
            found = documents.find(block, lines, rows, span=span, rule=rule)
            sizes, has_text = lines[1] - lines[0], rows.counts > 0
            for of_line in (np.arange(len(sizes)), found.number):
                begins = np.flatnonzero(np.diff(of_line, prepend=-1))
                counts = np.add.reduceat(has_text, begins, dtype=np.int64)
                large = np.add.reduceat(sizes * has_text, begins) >= LEAST
                large &= (counts > 1) | (of_line is not found.number)  # of one line, that is it
                ends = np.append(begins[1:], len(sizes))
                hashes.append(hash_runs(rows.hashes[has_text], counts)[large])
                ranges.append(first + np.stack([begins, ends], 1)[large])
            first += len(sizes)
    return Passages(np.concatenate(hashes), np.concatenate(ranges))


def find_copies(pieces: Sequence[Passages]) -> list[Int64s]:
    """Return of each piece the ranges of lines that came before, in it or in a piece before it."""
    hashes = np.concatenate([piece.hashes for piece in pieces])
    is_copy = np.ones(len(hashes), bool)
    is_copy[np.unique(hashes, return_index=True)[1]] = False
    ends = np.cumsum([len(piece.hashes) for piece in pieces])
    return [
        _joined(piece.lines[copies])
        for piece, copies in zip(pieces, np.split(is_copy, ends[:-1]), strict=True)
    ]


def _joined(ranges: Int64s) -> Int64s:
    """Join ranges that overlap or touch, and sort them."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    begins = np.flatnonzero(np.append(True, ranges[1:, 0] > ends[:-1])[: len(ranges)])
    return np.stack([ranges[begins, 0], np.append(ends[begins[1:] - 1], ends[-1:])], 1)


def are_in(numbers: Int64s, ranges: Int64s) -> npt.NDArray[np.bool_]:
    """Tell of each number whether it is in one of the ranges, which are sorted."""
    if not len(ranges):
        return np.zeros(len(numbers), bool)
    at = np.searchsorted(ranges[:, 0], numbers, "right") - 1
    return (at >= 0) & (numbers < ranges[at, 1])
