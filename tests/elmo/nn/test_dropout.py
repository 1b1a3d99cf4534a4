"""Masks follow from the keys of rows: the same for any split of the rows, and like random ones."""

import numpy as np
import pytest
import torch

from elmo.nn.dropout import dropout_keys, dropout_scales


def masks(*parts: int, rows: list[int], probability: float = 0.3) -> torch.Tensor:
    keys_LB = dropout_keys(*parts, rows=rows)[None]
    return dropout_scales((2, 20, len(rows), 32), keys_LB, probability, torch.float32)[0]


WORD, TWICE = 1 << 32, 1 << 64


def plain_key(parts: tuple[int, ...], row: int) -> int:
    """SplitMix64 from a number that all rows share, its upper half."""
    state = int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])
    key = (state + (row + 1) * 0x9E3779B97F4A7C15) % TWICE
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 % TWICE
    key = (key ^ key >> 27) * 0x94D049BB133111EB % TWICE
    return key >> 32


def plain_scale(key: int, number: int, probability: float) -> float:
    """MurmurHash3's last step, of a value's number and the key of its row and layer."""
    mixed = (number * 0x9E3779B9 + key) % WORD
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B % WORD
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 % WORD
    signed = ((mixed ^ mixed >> 16) + WORD // 2) % WORD - WORD // 2
    return float(signed >= round(probability * WORD) - WORD // 2) / (1 - probability)


def test_each_value_has_the_mask_of_its_layer_and_row_alone() -> None:
    S, T, P, rows = 2, 3, 5, [0, 7, 31]
    keys_LB = torch.stack([dropout_keys(3, 11, layer, rows=rows) for layer in range(3)])
    found = dropout_scales((S, T, len(rows), P), keys_LB, 0.3, torch.float64)
    assert found.shape == (3, S, T, len(rows), P)
    for (layer, s, t, b, p), scale in np.ndenumerate(found.numpy()):
        key = plain_key((3, 11, layer), rows[b])
        assert scale == pytest.approx(plain_scale(key, (s * T + t) * P + p, 0.3), rel=1e-6)


def test_values_are_zeroed_or_scaled_with_the_probability() -> None:
    for probability in (0.05, 0.3, 0.5):
        found = masks(5, rows=list(range(64)), probability=probability)
        kept = found > 0
        torch.testing.assert_close(found[kept], torch.full_like(found[kept], 1 / (1 - probability)))
        # 81,920 draws: four standard deviations.
        assert abs(1 - kept.float().mean() - probability) < 4 * (probability / 81920) ** 0.5


def test_rows_steps_and_neighbours_are_independent() -> None:
    kept = (masks(5, rows=list(range(64)), probability=0.5) > 0).float() - 0.5
    other = (masks(6, rows=list(range(64)), probability=0.5) > 0).float() - 0.5
    pairs = [
        (kept, other),
        (kept[:, :, 1:], kept[:, :, :-1]),
        (kept[:, 1:], kept[:, :-1]),
        (kept[..., 1:], kept[..., :-1]),
        (kept[0], kept[1]),
    ]
    for a, b in pairs:
        assert abs((a * b).mean() * 4) < 4 / a.numel() ** 0.5
