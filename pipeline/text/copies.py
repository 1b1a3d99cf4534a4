"""Find copies in a text, repeated documents and lines, by their hashes before it is tokenized.

Near-copies of documents are left out too if the settings say so. Text that one corpus holds out and
the other trains on is left out of the general text. Only documents and lines of 256 bytes or more
count as copies, because short texts, such as answers and headings, often repeat.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .accounting import Accounting
from .documents import DocumentBlock
from .filters import DocumentCounts, count_documents, find_filtered, is_filtering, join_counts
from .near_duplicates import SLOTS, find_near_duplicates, sketch_documents
from .pieces import Piece
from .text_hashes import Hashes, hash_runs

ExcludedLines = dict[str, Int64s]  # ranges of a piece's lines, by the reason to leave them out

MIN_COPY_BYTES = 256  # shorter documents and lines are no copies


class Passages(NamedTuple):
    """Documents or lines of a piece in order, by their `keys`: hashes or sketches.

    `line_ranges` has the first line of each and the line after its last one, numbered in the piece;
    `heldout` says which ones are held out.
    """

    keys: npt.NDArray[np.unsignedinteger]
    line_ranges: Int64s
    heldout: npt.NDArray[np.bool_]

    def select(self, mask: npt.NDArray[np.bool_]) -> "Passages":
        """Return some of the passages."""
        return Passages(self.keys[mask], self.line_ranges[mask], self.heldout[mask])


class PiecePassages(NamedTuple):
    """The documents and lines of a piece of `MIN_COPY_BYTES` or more: `exact` by their hashes.

    With `tokenize.near_duplicates`, `near_documents` has the documents by their sketches. With
    `tokenize.repeated_lines`, `line_hashes` has the hashes of all lines and `line_counts` the
    number of documents that contain each. `filtered_lines` are the lines that the filters leave
    out, by reason; they are not among the passages.
    """

    exact: Passages
    near_documents: Passages
    line_hashes: Hashes
    line_counts: Int64s
    filtered_lines: ExcludedLines


def find_passages(piece: Piece) -> PiecePassages:
    """Return the passages of a piece that the filters keep."""
    passages, documents = collect_passages(piece, needs_documents=is_filtering(piece.params))
    filtered_lines = find_filtered(documents, piece.params, piece.divided_bytes)
    return _exclude(passages, filtered_lines)._replace(filtered_lines=filtered_lines)


def collect_passages(
    piece: Piece,
    *,
    needs_documents: bool,
    on_block: Callable[[DocumentBlock, int], None] = lambda *_: None,
) -> tuple[PiecePassages, DocumentCounts]:
    """Return all passages of a piece, without filtering, and with `needs_documents` its documents.

    `on_block` is called with each block and the number of its first line.
    """
    first_line = document_count = 0
    document_counts: list[DocumentCounts] = []
    ids: list[Int64s] = []
    hash_document_pairs = [np.zeros((0, 2), np.uint64)]
    exact_passages = [_no_passages(np.zeros(0, np.uint64))]
    near_documents = [_no_passages(np.zeros((0, SLOTS), np.uint16))]
    for block, heldout in piece.read_documents(Accounting()):
        lines, rows, document_numbers = block.lines, block.rows, block.document_numbers
        sizes, has_text = lines[1] - lines[0], rows.counts > 0
        if piece.params.repeated_lines:
            document_ids = (document_numbers + document_count).astype(np.uint64)
            pairs = np.stack([rows.hashes, document_ids], 1)
            hash_document_pairs.append(np.unique(pairs[has_text], axis=0))
        if needs_documents:
            document_counts.append(count_documents(block, first_line))
            ids.append(np.unique(document_numbers) + document_count)
        on_block(block, first_line)
        document_count += len(block.hashes)
        for unit_by_line in (np.arange(len(sizes)), document_numbers):
            starts = np.flatnonzero(np.diff(unit_by_line, prepend=-1))
            counts = np.add.reduceat(has_text, starts, dtype=np.int64)
            is_large = np.add.reduceat(sizes * has_text, starts) >= MIN_COPY_BYTES
            ranges = np.stack([starts, np.append(starts[1:], len(sizes))], 1)
            sides = heldout[document_numbers[starts]]
            if unit_by_line is document_numbers:
                if piece.params.near_duplicates:
                    is_long, sketches = sketch_documents(block.text, lines, ranges[is_large])
                    near_ranges = first_line + ranges[is_large][is_long]
                    near_documents.append(Passages(sketches, near_ranges, sides[is_large][is_long]))
                is_large &= counts > 1  # a document of one line is that line
            hashes = hash_runs(rows.hashes[has_text], counts)
            exact_passages.append(Passages(hashes, first_line + ranges, sides).select(is_large))
        first_line += len(sizes)
    pairs = np.unique(np.concatenate(hash_document_pairs), axis=0)
    line_hashes, line_counts = np.unique(pairs[:, 0], return_counts=True)
    passages = PiecePassages(
        _join(exact_passages), _join(near_documents), line_hashes, line_counts, {}
    )
    return passages, join_counts(document_counts, ids)


def find_repeated_lines(
    pieces: Sequence[PiecePassages], *, document_count: int
) -> list[tuple[int, ...]]:
    """Return for each piece the hashes of its lines in at least `document_count` documents."""
    hashes, counts = count_lines(pieces)
    repeated_hashes = hashes[counts >= document_count]
    return [tuple(np.intersect1d(piece.line_hashes, repeated_hashes).tolist()) for piece in pieces]


def count_lines(pieces: Sequence[PiecePassages]) -> tuple[Hashes, Int64s]:
    """Return the hashes of all lines, and the number of documents that contain each."""
    hashes, indices = np.unique(
        np.concatenate([piece.line_hashes for piece in pieces]), return_inverse=True
    )
    counts = np.bincount(indices, np.concatenate([piece.line_counts for piece in pieces]))
    return hashes, counts.astype(np.int64)


def find_copies(pieces: Sequence[PiecePassages], *, similarity: float = 0.0) -> list[ExcludedLines]:
    """Return for each piece the ranges of lines to leave out, by reason.

    The reasons are those of the filters, "copy" and, with a `similarity` above 0, "near_copy": a
    document that is at least so similar to an earlier one.
    """
    originals = find_originals([piece.exact for piece in pieces])
    copies = split_ranges(originals >= 0, [piece.exact.line_ranges for piece in pieces])
    exclusions: list[ExcludedLines] = [
        {**piece.filtered_lines, "copy": ranges}
        for piece, ranges in zip(pieces, copies, strict=True)
    ]
    if similarity:
        near_originals = find_originals(
            [piece.near_documents for piece in pieces], similarity=similarity
        )
        near_ranges = split_ranges(
            near_originals >= 0, [piece.near_documents.line_ranges for piece in pieces]
        )
        for excluded_lines, ranges in zip(exclusions, near_ranges, strict=True):
            excluded_lines["near_copy"] = ranges
    return exclusions


def find_originals(pieces: Sequence[Passages], *, similarity: float = 0.0) -> Int64s:
    """Return for each passage of all pieces the index of an earlier one that it repeats, or -1.

    With a `similarity`, keys are sketches, and a passage repeats one that is at least so similar.
    """
    keys = np.concatenate([piece.keys for piece in pieces])
    if similarity:
        return find_near_duplicates(keys, similarity=similarity)
    _, first_indices, indices = np.unique(keys, return_index=True, return_inverse=True)
    return np.where(first_indices[indices] < np.arange(len(keys)), first_indices[indices], -1)


def find_leaks(
    pieces: Sequence[PiecePassages],
    other_pieces: Sequence[PiecePassages],
    *,
    similarity: float = 0.0,
) -> list[Int64s]:
    """Return for each piece the ranges of lines that leak between two texts.

    A line leaks if one text holds it out and the other, whose pieces are `other_pieces`, trains on
    it. With a `similarity` above 0, similar documents leak too.
    """
    copies = find_copies(other_pieces, similarity=similarity)
    other_pieces = [
        _exclude(piece, exclusions) for piece, exclusions in zip(other_pieces, copies, strict=True)
    ]
    passages, other_passages = (
        _join([piece.exact for piece in text]) for text in (pieces, other_pieces)
    )
    is_leak = np.zeros(len(passages.keys), bool)
    for is_heldout in (False, True):
        is_candidate, other_keys = (
            passages.heldout == is_heldout,
            other_passages.keys[other_passages.heldout != is_heldout],
        )
        is_leak[is_candidate] = np.isin(passages.keys[is_candidate], other_keys)
    ranges = split_ranges(is_leak, [piece.exact.line_ranges for piece in pieces])
    if similarity and (count := sum(len(piece.near_documents.keys) for piece in other_pieces)):
        originals = find_near_duplicates(
            np.concatenate([piece.near_documents.keys for piece in (*other_pieces, *pieces)]),
            similarity=similarity,
            reference_count=count,
            sides=np.concatenate(
                [
                    *(~piece.near_documents.heldout for piece in other_pieces),
                    *(p.near_documents.heldout for p in pieces),
                ]
            ),
        )
        near_ranges = split_ranges(
            originals >= 0, [piece.near_documents.line_ranges for piece in pieces]
        )
        ranges = [_merge(np.concatenate(pair)) for pair in zip(ranges, near_ranges, strict=True)]
    return ranges


def _exclude(piece: PiecePassages, excluded_lines: ExcludedLines) -> PiecePassages:
    """Return the piece without the passages in `excluded_lines`."""
    ranges = _merge(np.concatenate([*excluded_lines.values()]))
    if not len(ranges):
        return piece

    def are_kept(passages: Passages) -> npt.NDArray[np.bool_]:
        indices = np.searchsorted(ranges[:, 0], passages.line_ranges[:, 0], "right") - 1
        return (indices < 0) | (passages.line_ranges[:, 1] > ranges[indices, 1])

    return piece._replace(
        exact=piece.exact.select(are_kept(piece.exact)),
        near_documents=piece.near_documents.select(are_kept(piece.near_documents)),
    )


def _no_passages(keys: npt.NDArray[np.unsignedinteger]) -> Passages:
    return Passages(keys, np.zeros((0, 2), np.int64), np.zeros(0, bool))


def _join(groups: Sequence[Passages]) -> Passages:
    """Return several groups of passages as one, in order."""
    return Passages(*map(np.concatenate, zip(*groups, strict=True)))


def split_ranges(is_left_out: npt.NDArray[np.bool_], ranges: Sequence[Int64s]) -> list[Int64s]:
    """Return each piece's merged ranges that `is_left_out`, a mask over all pieces, selects."""
    ends = np.cumsum([len(piece_ranges) for piece_ranges in ranges])
    pairs = zip(ranges, np.split(is_left_out, ends[:-1]), strict=True)
    return [_merge(piece_ranges[mask]) for piece_ranges, mask in pairs]


def _merge(ranges: Int64s) -> Int64s:
    """Merge ranges that overlap or touch, and sort them."""
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    starts = np.flatnonzero(np.append(True, ranges[1:, 0] > ends[:-1])[: len(ranges)])
    return np.stack([ranges[starts, 0], np.append(ends[starts[1:] - 1], ends[-1:])], 1)


def in_ranges(numbers: Int64s, ranges: Int64s) -> npt.NDArray[np.bool_]:
    """Tell for each number whether it is in one of the sorted ranges."""
    if not len(ranges):
        return np.zeros(len(numbers), bool)
    indices = np.searchsorted(ranges[:, 0], numbers, "right") - 1
    return (indices >= 0) & (numbers < ranges[indices, 1])
