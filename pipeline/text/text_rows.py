"""Rows of text as stretches (strings between ASCII white space), hashed without a loop."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.data.arrays import Int64s

from .text_hashes import Hashes, hash_runs, hash_strings

_NEWLINE = 10


def find_lines(text: bytes) -> tuple[Int64s, Int64s]:
    """Return the start and end of each line; the end is before its newline."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return np.append(0, ends[:-1] + 1), ends


@dataclass(frozen=True)
class TextRows:
    """Rows of text as stretches between ASCII white space.

    `distinct_stretches` has each stretch at least once, `ids` their indices in text order, `counts`
    the number of stretches in each row, and `hashes` the hash of each row.
    """

    distinct_stretches: pa.StringArray
    ids: npt.NDArray[np.int32]
    counts: Int64s
    hashes: Hashes

    @classmethod
    def find(cls, text: bytes, row_bounds: tuple[Int64s, Int64s]) -> "TextRows":
        """Find the stretches of each row."""
        data = np.frombuffer(text, np.uint8)
        is_space = (data == 32) | (data - np.uint8(9) < 5)
        starts = np.flatnonzero(is_space[:-1] & ~is_space[1:]) + 1
        starts = starts if is_space[0] else np.append(0, starts)
        ends = np.append(starts, len(text)).astype(np.int32)
        stretches = pa.StringArray.from_buffers(len(starts), pa.py_buffer(ends), pa.py_buffer(text))
        stretches = stretches.dictionary_encode()
        distinct_stretches = pc.ascii_rtrim_whitespace(stretches.dictionary)
        ids = stretches.indices.to_numpy()
        counts = np.diff(np.searchsorted(starts, row_bounds[1]), prepend=0)
        hashes = hash_runs(hash_strings(distinct_stretches)[ids], counts)
        return cls(distinct_stretches, ids, counts, hashes)
