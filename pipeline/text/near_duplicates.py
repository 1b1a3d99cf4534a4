"""Find documents that nearly repeat an earlier one, by MinHash and locality-sensitive hashing.

The similarity of two documents is the Jaccard index of their sets of 16-byte substrings, white
space removed. It needs no words, so it works for every script.
"""

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .text_hashes import hash_windows

Sketches = npt.NDArray[np.uint16]

SLOTS = 128  # slots of a sketch; the share of equal ones estimates similarity, ± 0.03 at 0.8
_WINDOW_BYTES = 16  # three or four English words, or five Chinese characters
_SEED = 2018
_PAIRS_AT_A_TIME = 1 << 16


def sketch_documents(
    text: bytes, lines: tuple[Int64s, Int64s], documents: Int64s
) -> tuple[npt.NDArray[np.bool_], Sketches]:
    """Return which documents of a block are long enough for a sketch, and their sketches.

    `documents` has, in order, the number of each document's first line and of the line after its
    last one; `lines` has the start and end of each line in `text`. A sketch keeps the lowest 16
    bits of each slot, so different slots are equal once in 65,536 times.
    """
    text_bytes = np.frombuffer(text, np.uint8)
    document_edges = np.stack([lines[0][documents[:, 0]], lines[1][documents[:, 1] - 1]], 1).ravel()
    positions = np.flatnonzero(text_bytes > 32)
    intervals = np.searchsorted(document_edges, positions, "right")  # odd within a document
    positions, owners = positions[intervals % 2 == 1], intervals[intervals % 2 == 1] // 2
    hashes = hash_windows(text_bytes[positions].astype(np.uint64) + np.uint64(1), _WINDOW_BYTES)
    is_within_document = owners[: len(hashes)] == owners[len(owners) - len(hashes) :]
    counts = np.bincount(owners[: len(hashes)][is_within_document], minlength=len(documents))
    sketches = np.zeros((0, SLOTS), np.uint16)
    if is_within_document.any():
        from rensa import RMinHash

        offsets = np.append(0, np.cumsum(counts[counts > 0])).astype(np.uint64)
        digests = RMinHash.digest_matrix_from_flat_token_hashes(
            hashes[is_within_document], offsets, num_perm=SLOTS, seed=_SEED
        )
        sketches = np.array(digests.to_rows(), np.uint32).astype(np.uint16)
    return counts > 0, sketches


def find_near_duplicates(
    sketches: Sketches,
    *,
    similarity: float,
    reference_count: int = 0,
    sides: npt.NDArray[np.bool_] | None = None,
) -> Int64s:
    """Return for each document an earlier one that shares `similarity` of its slots or more, or -1.

    For each band of slots, a document is compared with the first document that has the same band,
    and with the last such document before it. With `reference_count`, all documents after the first
    `reference_count` are compared only with these, and only their results are returned. With
    `sides`, only documents of the same side are compared.
    """
    originals = np.full(len(sketches), -1)
    # Wider bands compare fewer documents; at most 1 in 100 similar pairs may be missed.
    width = next((size for size in (4, 3) if (1 - similarity**size) ** (SLOTS // size) < 0.01), 2)
    for first_slot in range(0, SLOTS - width + 1, width):
        slots = np.zeros((len(sketches), 4), np.uint16)
        slots[:, :width] = sketches[:, first_slot : first_slot + width]
        keys = slots.view(np.uint64).ravel()
        if sides is not None:
            keys[sides] = ~keys[sides]
        order = np.argsort(keys, kind="stable")  # equal keys stay in the order of the text
        positions = np.arange(len(order))
        is_first = np.append(True, np.diff(keys[order]) != 0)[: len(order)]
        first_positions = np.maximum.accumulate(np.where(is_first, positions, 0))
        is_later, predecessors = ~is_first & (originals[order] < 0), positions - 1
        if reference_count:
            is_reference = order < reference_count
            predecessors = np.maximum.accumulate(np.where(is_reference | is_first, positions, 0))
            is_later &= ~is_reference & is_reference[first_positions]
        later_positions = np.flatnonzero(is_later)
        for earlier_positions in (first_positions[later_positions], predecessors[later_positions]):
            for start in range(0, len(later_positions), _PAIRS_AT_A_TIME):
                span = slice(start, start + _PAIRS_AT_A_TIME)
                documents, candidates = order[later_positions[span]], order[earlier_positions[span]]
                is_near = (sketches[documents] == sketches[candidates]).mean(1) >= similarity
                originals[documents[is_near]] = candidates[is_near]
    return originals[reference_count:]
