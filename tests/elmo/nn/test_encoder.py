"""The char-CNN against a slow loop over all 50 positions."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elmo.data.characters import Characters
from elmo.nn.bilm import BiLM
from elmo.nn.encoder import CHUNK_TOKENS, CharacterEncoder
from tests.elmo.run_job import NETWORK

FILTERS = ((1, 3), (2, 4), (5, 6))
NARROW = ((1, 3), (2, 10))
TOKENS = ["a", "", "gift", "x" * 47, "y" * 60, "어" * 20, "😀", "<S>", "</S>", "the"]


def encoder(
    *,
    activation: str = "relu",
    highways: int = 2,
    projection: int = 5,
    filters: tuple[tuple[int, int], ...] = FILTERS,
) -> CharacterEncoder:
    made = CharacterEncoder(
        character_count=261,
        char_dim=4,
        filters=filters,
        activation=activation,
        highways=highways,
        projection=projection,
    )
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5, generator=generator)
    return made


def by_hand(made: CharacterEncoder, row: Tensor) -> Tensor:
    """One token: every window of all 50 positions, padding included."""
    x_KE = made.char_embedding[row]
    pooled = []
    for width, weight, bias in zip(made.widths, made.conv_weight, made.conv_bias, strict=True):
        windows = [x_KE[k : k + width].reshape(-1) @ weight for k in range(50 - width + 1)]
        pooled.append(getattr(torch, made.activation)(torch.stack(windows).amax(0) + bias))
    x_F = torch.cat(pooled)
    for high in made.highway:
        carry = torch.sigmoid(x_F @ high.carry_weight + high.carry_bias)
        transform = torch.relu(x_F @ high.transform_weight + high.transform_bias)
        x_F = carry * transform + (1 - carry) * x_F
    if made.project_weight is None:
        return x_F
    return x_F @ made.project_weight + made.project_bias


@pytest.mark.parametrize(
    ("activation", "highways", "projection"),
    [("relu", 2, 5), ("tanh", 1, 5), ("relu", 0, 5), ("tanh", 0, 13)],
)
def test_cut_windows_agree_with_all_positions(
    activation: str, highways: int, projection: int
) -> None:
    rows = torch.from_numpy(Characters().encode(TOKENS))
    for filters in (FILTERS, NARROW, ((1, 13),)):
        made = encoder(
            activation=activation, highways=highways, projection=projection, filters=filters
        )
        assert (made.project_weight is None) == (projection == 13)
        slow = torch.stack([by_hand(made, row) for row in rows])
        torch.testing.assert_close(made(rows, torch.float32), slow, atol=1e-5, rtol=1e-5)


def test_gradients_agree_with_all_positions() -> None:
    made = encoder()
    rows = torch.from_numpy(Characters().encode(TOKENS))
    found = []
    for output in (made(rows, torch.float32), torch.stack([by_hand(made, row) for row in rows])):
        made.zero_grad()
        output.pow(2).sum().backward()
        found.append([p.grad.clone() for p in made.parameters() if p.grad is not None])
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, atol=1e-4, rtol=1e-4)


def test_a_token_is_the_same_whatever_stands_beside_it() -> None:
    made = encoder()
    tokens = [f"{'w' * (k % 40)}{k}" for k in range(2 * CHUNK_TOKENS + 3)]
    rows = torch.from_numpy(Characters().encode(tokens))
    with torch.no_grad():
        together = made(rows, torch.float32)
        alone = torch.cat(
            [made(rows[k : k + 1], torch.float32) for k in (0, 7, CHUNK_TOKENS, 2 * CHUNK_TOKENS)]
        )
    torch.testing.assert_close(
        together[[0, 7, CHUNK_TOKENS, 2 * CHUNK_TOKENS]], alone, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_weights_are_drawn_as_in_2018(activation: str) -> None:
    """Uniform from −b to b has the deviation b / √3; Glorot's, √(2 / (inputs + outputs))."""
    filters = ((1, 96), (2, 96))
    shape = replace(NETWORK, char_dim=64, filters=filters, activation=activation, cells=96)
    bilm = BiLM(replace(shape, projection=64), character_count=261)
    bilm.reset_parameters(1)
    for name, value in bilm.named_parameters():
        kind = next(part for part in reversed(name.split(".")) if not part.isdigit())
        if "bias" in kind:
            assert (value == (-2 if kind == "carry_bias" else 0)).all(), name
            continue
        rows, columns = value.shape[-2:]
        std = (2 / (rows + columns)) ** 0.5 if "lstm" in name else rows**-0.5
        if kind == "char_embedding" or kind == "conv_weight" and activation == "relu":
            std = (0.05 if kind == "conv_weight" else 1.0) * 3**-0.5
        assert float(value.detach().std()) == pytest.approx(std, rel=0.03), name
