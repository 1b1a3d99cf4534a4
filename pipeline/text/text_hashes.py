"""Vectorized hashes of strings, sentences and documents, stable across machines and versions.

The hash of a sequence x_0, x_1, … is mix(Σ x_k · M^k) modulo 2^64. The elements are the bytes of a
string, the hashes of a sentence's strings, or the hashes of a document's lines. Exponents count
from the start of the whole array and are corrected with the inverse of M, so there is no loop over
sequences.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_M = 0x9E3779B97F4A7C15
_INVERSE = pow(_M, -1, 2**64)


def hash_strings(strings: pa.StringArray) -> Hashes:
    """Return a hash of each string's bytes; 0 for an empty string."""
    offsets = np.frombuffer(strings.buffers()[1], np.int32)[strings.offset :][: len(strings) + 1]
    if not len(strings) or offsets[-1] == offsets[0]:
        return np.zeros(len(strings), np.uint64)
    data = np.frombuffer(strings.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return hash_runs(data.astype(np.uint64) + np.uint64(1), np.diff(offsets))


def hash_runs(values: Hashes, counts: npt.NDArray[np.integer]) -> Hashes:
    """Return one hash for each run of consecutive `values`; `counts` are the lengths of the runs.

    For example, documents are hashed from the hashes of their lines. An empty run hashes to 0.
    """
    hashes = np.zeros(len(counts), np.uint64)
    runs = np.flatnonzero(counts)
    if len(runs):
        starts = (np.cumsum(counts) - counts)[runs]
        sums = np.add.reduceat(values * _powers(_M, len(values)), starts)
        hashes[runs] = _mix_bits(sums * _powers(_INVERSE, len(values))[starts])
    return hashes


def hash_windows(values: Hashes, size: int) -> Hashes:
    """Return one hash for each window of `size` consecutive `values`."""
    sums = np.append(np.uint64(0), np.cumsum(values * _powers(_M, len(values)), dtype=np.uint64))
    windows = sums[size:] - sums[: max(len(sums) - size, 0)]
    return _mix_bits(windows * _powers(_INVERSE, len(values))[: len(windows)])


def _mix_bits(hashes: Hashes) -> Hashes:
    """Apply the finalizer of SplitMix64: each input bit changes half of the output bits."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _powers(base: int, count: int) -> Hashes:
    return _power_table(base, 1 << max(count - 1, 1).bit_length())[:count]


@lru_cache(maxsize=4)
def _power_table(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)
