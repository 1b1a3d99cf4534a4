"""Masks follow from the keys of rows: the same for any split of the rows, and like random ones."""

import torch

from elmo.nn.dropout import dropout_keys, dropout_scales


def masks(*parts: int, rows: list[int], probability: float = 0.3) -> torch.Tensor:
    keys_LB = dropout_keys(*parts, rows=rows)[None]
    return dropout_scales((2, 20, len(rows), 32), keys_LB, probability, torch.float32)[0]


def test_a_rows_mask_does_not_depend_on_the_other_rows() -> None:
    whole = masks(1, 2, rows=list(range(64)))
    torch.testing.assert_close(masks(1, 2, rows=[7]), whole[:, :, 7:8], rtol=0, atol=0)
    torch.testing.assert_close(masks(1, 2, rows=[30, 31]), whole[:, :, 30:32], rtol=0, atol=0)


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


def test_layers_have_masks_of_their_own() -> None:
    keys_LB = torch.stack([dropout_keys(1, layer, rows=[0, 1]) for layer in range(3)])
    scales = dropout_scales((2, 5, 2, 8), keys_LB, 0.5, torch.float32)
    assert scales.shape == (3, 2, 5, 2, 8)
    assert not torch.equal(scales[0], scales[1])
    alone = dropout_scales((2, 5, 2, 8), keys_LB[1:2], 0.5, torch.float32)
    torch.testing.assert_close(scales[1], alone[0], rtol=0, atol=0)
