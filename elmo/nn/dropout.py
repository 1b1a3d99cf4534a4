"""Inverted dropout with reproducible masks, computed from one key per row on any device or worker.

A random generator would have to draw the masks of all rows in order. Instead, an element's mask
is a hash of its row's key and its index, so a worker computes only the masks of its own rows.

Shapes: L layers, S directions, T time steps, B rows, P projection.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_GOLDEN_FACTOR, _FIRST_FACTOR, _SECOND_FACTOR = -0x61C88647, -0x7A143595, -0x3D4D51CB  # 32 bits


def dropout_keys(*mask_numbers: int, rows: list[int]) -> Tensor:
    """Return a 32-bit key for each row, from which `dropout_scales` computes the row's mask.

    `mask_numbers`, such as seed, step and layer, distinguish masks; `rows` are row numbers among
    the rows of all workers. Different numbers give independent masks.
    """
    base = np.random.SeedSequence(mask_numbers).generate_state(1, np.uint64)[0]
    keys = (np.asarray(rows, np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + base
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return torch.from_numpy((keys >> np.uint64(32)).astype(np.uint32).view(np.int32))


def dropout_scales(
    shape: Sequence[int], keys_LB: Tensor, probability: float, dtype: torch.dtype
) -> Tensor:
    """Return the factors by which dropout multiplies each layer's values, in the values' `dtype`: 0
    with `probability`, else 1 / (1 − probability).

    `shape` is the shape of one layer's values (direction, time step, row, projection). `keys_LB`
    has a key from `dropout_keys` for each layer and row. The first axis of the result is the layer.
    """
    S, T, _, P = shape
    index_STP = torch.arange(S * T * P, dtype=torch.int32, device=keys_LB.device).view(S, T, 1, P)
    hash_LSTBP = index_STP.mul_(_GOLDEN_FACTOR) + keys_LB[:, None, None, :, None]
    _mix_bits(hash_LSTBP, 16, _FIRST_FACTOR)
    _mix_bits(hash_LSTBP, 13, _SECOND_FACTOR)
    hash_LSTBP ^= (hash_LSTBP >> 16) & 0xFFFF
    # As signed numbers, the hashes are uniform from −2³¹ on.
    is_kept_LSTBP = hash_LSTBP >= round(probability * 2**32) - 2**31
    scales_LSTBP = torch.empty_like(is_kept_LSTBP, dtype=dtype)
    return torch.mul(is_kept_LSTBP, 1 / (1 - probability), out=scales_LSTBP)


def _mix_bits(hash_LSTBP: Tensor, shift: int, factor: int) -> None:
    hash_LSTBP ^= (hash_LSTBP >> shift) & ((1 << (32 - shift)) - 1)
    hash_LSTBP *= factor
