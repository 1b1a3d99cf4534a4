"""Hashes never change: the held-out split of every corpus rests on them."""

import numpy as np
import pyarrow as pa

from pipeline.text.text_hashes import hash_runs, hash_strings

MASK = 2**64 - 1


def slow(values: list[int]) -> int:
    """The definition, a value at a time."""
    x = sum(v * pow(0x9E3779B97F4A7C15, k, 2**64) for k, v in enumerate(values)) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_hashes_are_frozen() -> None:
    found = hash_strings(pa.array(["the", "naïve", "고양이"]))
    assert found.tolist() == [17357140401427252685, 14787918922373207803, 15842856848765693547]


def test_strings_hash_as_defined_wherever_they_stand() -> None:
    strings = ["the", "", "cat", "고양이", "the", "x" * 500]
    found = hash_strings(pa.array(strings))
    assert found.tolist() == [slow([b + 1 for b in s.encode()]) if s else 0 for s in strings]
    assert hash_strings(pa.array(["zzz", *strings]).slice(1)).tolist() == found.tolist()
    assert hash_strings(pa.array(["", ""])).tolist() == [0, 0]
    assert hash_strings(pa.array([], pa.string())).tolist() == []


def test_runs_hash_as_defined_and_empty_ones_to_zero() -> None:
    values = np.array([5, MASK, 7, 11], np.uint64)
    assert hash_runs(values, np.array([0, 2, 0, 1, 1, 0])).tolist() == [
        0,
        slow([5, MASK]),
        0,
        slow([7]),
        slow([11]),
        0,
    ]
