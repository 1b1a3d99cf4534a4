"""Copies in a text: documents and lines that come again, found by their hashes before it is cut.

Documents that nearly repeat an earlier one are left out too if the settings ask for it. Only what
has 256 bytes or more is taken for a copy: shorter texts, such as an answer or a heading, are
written again and again by people.
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
from .near_duplicates import SLOTS, Sketches, find_near_duplicates, sketch_documents
from .pieces import Piece
from .text_blocks import read_blocks
from .text_hashes import Hashes, hash_runs
from .text_rows import TextRows, find_lines
from .utf8_lines import BLOCK

LEAST = 256  # bytes of a document or line from which it can be a copy


@dataclass(frozen=True)
class Passages:
    """The documents and lines of a piece that have `LEAST` bytes: their hashes and lines.

    `lines` are, of each, the numbers of its first line and of the line after it in the piece. With
    `tokenize.near_duplicates` the `documents` have `sketches`.
    """

    hashes: Hashes
    lines: Int64s
    documents: Int64s
    sketches: Sketches


def find_passages(piece: Piece) -> Passages | ElmoError:
    """Return the passages of a piece, or the error of a file that cannot be read."""
    try:
        return _passages(piece)
    except ElmoError as error:
        return error


def _passages(piece: Piece) -> Passages:
    documents, first = Documents(), 0
    hashes, ranges = [np.zeros(0, np.uint64)], [np.zeros((0, 2), np.int64)]
    sketches, sketched = [np.zeros((0, SLOTS), np.uint16)], [np.zeros((0, 2), np.int64)]
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
                within = np.stack([begins, np.append(begins[1:], len(sizes))], 1)
                if of_line is found.number:
                    if piece.params.near_duplicates:
                        long, new = sketch_documents(block.text, lines, within[large])
                        sketches.append(new)
                        sketched.append(first + within[large][long])
                    large &= counts > 1  # of one line, that is it
                hashes.append(hash_runs(rows.hashes[has_text], counts)[large])
                ranges.append(first + within[large])
            first += len(sizes)
    return Passages(
        np.concatenate(hashes),
        np.concatenate(ranges),
        np.concatenate(sketched),
        np.concatenate(sketches),
    )


def find_copies(pieces: Sequence[Passages], *, similarity: float = 0.0) -> list[Int64s]:
    """Return of each piece the ranges of lines that came before, in it or in a piece before it.

    With a `similarity` above 0, documents are among them that are so similar to an earlier one.
    """
    hashes = np.concatenate([piece.hashes for piece in pieces])
    is_copy = np.ones(len(hashes), bool)
    is_copy[np.unique(hashes, return_index=True)[1]] = False
    copies = _split(is_copy, [piece.lines for piece in pieces])
    if similarity:
        sketches = np.concatenate([piece.sketches for piece in pieces])
        near = find_near_duplicates(sketches, similarity=similarity)
        more = _split(near, [piece.documents for piece in pieces])
        copies = [np.concatenate(both) for both in zip(copies, more, strict=True)]
    return [_joined(lines) for lines in copies]


def _split(chosen: npt.NDArray[np.bool_], ranges: Sequence[Int64s]) -> list[Int64s]:
    """Return the chosen ranges of each piece; `chosen` goes through the pieces' in order."""
    ends = np.cumsum([len(one) for one in ranges])
    return [one[of] for one, of in zip(ranges, np.split(chosen, ends[:-1]), strict=True)]


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
