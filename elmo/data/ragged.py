"""Helpers for ragged arrays: sentence k has the tokens `offsets[k]` to `offsets[k + 1]`."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt


def split_into_runs(
    offsets: npt.NDArray[np.integer],
    max_tokens: int,
    *,
    begin: int = 0,
    end: int | None = None,
    max_sentences: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Split consecutive sentences into runs to process together; yield each run's start and stop.

    `offsets` (sentences + 1) is the index of each sentence's first token. A run has at most
    `max_tokens` tokens and `max_sentences` sentences (default: any number), but always at least one
    sentence. Only sentences `begin` to `end - 1` are split (default: all).
    """
    start, end = begin, len(offsets) - 1 if end is None else end
    while start < end:
        stop = int(np.searchsorted(offsets, offsets[start] + max_tokens, side="right")) - 1
        stop = min(max(stop, start + 1), end)
        if max_sentences is not None:
            stop = min(stop, start + max_sentences)
        yield start, stop
        start = stop
