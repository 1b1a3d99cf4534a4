"""Array types and functions: sets of small numbers without sorting, and runs of sentences."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.integer]
Int64s = npt.NDArray[np.int64]


def distinct_numbers(numbers: Int64s, stop: int) -> Int64s:
    """Return the distinct values among `numbers`, which are 0 to `stop` − 1, in ascending order."""
    is_present = np.zeros(stop, bool)
    is_present[numbers] = True
    return np.flatnonzero(is_present)


def index_table(numbers: Int64s, stop: int) -> npt.NDArray[np.int32]:
    """Return a table of `stop` entries: for each number, its index in `numbers`, or −1 if it is
    absent. `numbers` are distinct."""
    index = np.full(stop, -1, np.int32)
    index[numbers] = np.arange(len(numbers), dtype=np.int32)
    return index


def split_into_runs(
    offsets: npt.NDArray[np.integer],
    max_tokens: int,
    *,
    first_sentence: int = 0,
    end: int | None = None,
    max_sentences: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Split sentences into runs of neighbours to process together; yield each run's start and stop.

    `offsets` (sentences + 1) is the index of each sentence's first token. A run has at most
    `max_tokens` tokens and `max_sentences` sentences (default: any number), but always at least one
    sentence. Only sentences `first_sentence` to `end - 1` are split (default: all).
    """
    start, end = first_sentence, len(offsets) - 1 if end is None else end
    while start < end:
        stop = int(np.searchsorted(offsets, offsets[start] + max_tokens, side="right")) - 1
        stop = min(max(stop, start + 1), end)
        if max_sentences is not None:
            stop = min(stop, start + max_sentences)
        yield start, stop
        start = stop
