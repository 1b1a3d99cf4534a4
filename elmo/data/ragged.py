"""Helpers for ragged arrays: sentence k has the tokens `offsets[k]` to `offsets[k + 1]`."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def runs(
    offsets: npt.NDArray[np.integer],
    tokens: int,
    *,
    first: int = 0,
    last: int | None = None,
    sentences: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Split sentences `first` to `last` (default: all) into runs; yield the start and stop of each.

    A run has at most `tokens` tokens and `sentences` sentences, but always at least one sentence.
    """
    start, last = first, len(offsets) - 1 if last is None else last
    while start < last:
        stop = int(np.searchsorted(offsets, offsets[start] + tokens, side="right")) - 1
        stop = min(max(stop, start + 1), last)
        if sentences is not None:
            stop = min(stop, start + sentences)
        yield start, stop
        start = stop
