"""Masks follow from the keys of rows: the same for any split of the rows, and like random ones."""

import numpy as np
import pytest
import torch

from elmo.nn.dropout import dropout_keys, dropout_scales


def is_kept(*parts: int) -> torch.Tensor:
    """One half where a value of 64 rows is kept, minus one half where it is dropped."""
    keys_LB = dropout_keys(*parts, rows=list(range(64)))[None]
    scales = dropout_scales((2, 20, 64, 32), keys_LB, 0.5, torch.float32)[0]
    return (scales > 0).float() - 0.5


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


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.5])
def test_each_value_has_the_mask_of_its_layer_and_row_alone(probability: float) -> None:
    S, T, P, rows = 2, 3, 5, [0, 7, 31]
    keys_LB = torch.stack([dropout_keys(3, 11, layer, rows=rows) for layer in range(3)])
    found = dropout_scales((S, T, len(rows), P), keys_LB, probability, torch.float64)
    assert found.shape == (3, S, T, len(rows), P)
    for (layer, s, t, b, p), scale in np.ndenumerate(found.numpy()):
        key = plain_key((3, 11, layer), rows[b])
        expected = plain_scale(key, (s * T + t) * P + p, probability)
        assert scale == pytest.approx(expected, rel=1e-6)


def test_rows_steps_and_neighbours_are_independent() -> None:
    kept, other = is_kept(5), is_kept(6)
    pairs = [
        (kept, other),
        (kept[:, :, 1:], kept[:, :, :-1]),
        (kept[:, 1:], kept[:, :-1]),
        (kept[..., 1:], kept[..., :-1]),
        (kept[0], kept[1]),
    ]
    for a, b in pairs:
        assert abs((a * b).mean() * 4) < 4 / a.numel() ** 0.5
