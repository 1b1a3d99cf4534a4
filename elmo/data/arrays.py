"""Types of numpy arrays that several modules name, and sets of small numbers, without sorting."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]


def distinct_numbers(numbers: Int64s, stop: int) -> Int64s:
    """Return the distinct values among numbers from 0 to `stop` − 1, ascending."""
    is_present = np.zeros(stop, bool)
    is_present[numbers] = True
    return np.flatnonzero(is_present)


def index_table(numbers: Int64s, stop: int) -> npt.NDArray[np.int32]:
    """Return a table of `stop` entries that gives the index of each of `numbers`, which are
    distinct, and −1 for any other."""
    index = np.full(stop, -1, np.int32)
    index[numbers] = np.arange(len(numbers), dtype=np.int32)
    return index
