"""Runs of sentences, against a loop that adds one sentence at a time."""

import numpy as np
import pytest

from elmo.data.arrays import split_into_runs


def slowly(
    lengths: list[int], tokens: int, first: int, last: int, most: int
) -> list[tuple[int, int]]:
    found, start = [], first
    while start < last:
        stop = start + 1
        while stop < last and stop - start < most and sum(lengths[start : stop + 1]) <= tokens:
            stop += 1
        found.append((start, stop))
        start = stop
    return found


@pytest.mark.parametrize("tokens", [1, 3, 7, 1000])
@pytest.mark.parametrize("most", [1, 2, 1000])
def test_runs_hold_as_many_sentences_as_fit(tokens: int, most: int) -> None:
    lengths = np.random.default_rng(tokens).integers(0, 6, 40).tolist()
    offsets = np.cumsum([0, *lengths])
    for first, end in ((0, 40), (5, 31), (7, 7)):
        runs = split_into_runs(offsets, tokens, first_sentence=first, end=end, max_sentences=most)
        assert list(runs) == slowly(lengths, tokens, first, end, most)
