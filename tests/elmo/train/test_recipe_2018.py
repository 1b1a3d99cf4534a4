"""One training step of the 2018 recipe against a derivation of that step written out by hand.

The derivation runs in float64 with plain autograd over loops and whole matrices: no code of
`elmo.train.step`, `elmo.nn.softmax`, `elmo.nn.lstm`, `elmo.nn.encoder` or `elmo.train.optimizer`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.stream import Window, WindowStream
from elmo.data.vocabulary import Vocabulary
from elmo.nn import products
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import Softmax
from elmo.train.optimizer import Optimizer
from elmo.train.step import Stepper, WorkerGroup
from tests.elmo.run_job import ADAGRAD, NETWORK, TRAINING

WINDOW, ROWS, SAMPLES = 4, 3, 4
CONFIG = replace(
    NETWORK,
    char_dim=3,
    filters=((1, 2), (2, 3), (3, 4)),
    cells=5,
    projection=4,
    cell_clip=0.6,
    projection_clip=0.4,
)
SETTINGS = replace(
    TRAINING,
    rows=ROWS,
    window=WINDOW,
    reset="never",
    samples=SAMPLES,
    draws="separate",
    loss_scale=WINDOW,
    dropout=0.0,
    optimizer=replace(ADAGRAD, clip=0.5),
    seed=6,
)
WORDS = ["<S>", "</S>", "<UNK>", *"the cat sat on a mat and slept".split(), "w1", "w2", "w3"]


def windows(
    folder: Path, sentences: Sequence[Sequence[str]], *, block_sentences: int
) -> list[Window]:
    write_shards(folder / "shards", sentences)
    stream = WindowStream(
        Shards(folder / "shards"),
        Vocabulary(WORDS),
        Characters().encode,
        split="train",
        rows=ROWS,
        window=WINDOW,
        block_sentences=block_sentences,
        epochs=1,
        seed=5,
    )
    return [window for window, _ in stream.windows(stream.first_position())]


def encode(weights: dict[str, Tensor], row: Tensor) -> Tensor:
    embedded = weights["bilm.encoder.char_embedding"][row]
    pooled = []
    for k, (width, _) in enumerate(CONFIG.filters):
        kernel = weights[f"bilm.encoder.conv_weight.{k}"]
        windows = torch.stack([embedded[p : p + width].reshape(-1) for p in range(51 - width)])
        most = (windows @ kernel).max(0).values + weights[f"bilm.encoder.conv_bias.{k}"]
        pooled.append(torch.relu(most))
    x = torch.cat(pooled)
    high = {
        n: weights[f"bilm.encoder.highway.0.{n}"]
        for n in ("carry_weight", "carry_bias", "transform_weight", "transform_bias")
    }
    carry = torch.sigmoid(x @ high["carry_weight"] + high["carry_bias"])
    transform = torch.relu(x @ high["transform_weight"] + high["transform_bias"])
    x = carry * transform + (1 - carry) * x
    return x @ weights["bilm.encoder.project_weight"] + weights["bilm.encoder.project_bias"]


def next_state(
    weights: dict[str, Tensor], way: int, layer: int, x: Tensor, state: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """The output and the cell of one step of one row."""
    h, c = state
    z = torch.cat([x, h]) @ weights[f"bilm.lstm.weight.{layer}"][way]
    i, j, f, o = (z + weights[f"bilm.lstm.bias.{layer}"][way]).chunk(4)
    c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
    c = c.clamp(-CONFIG.cell_clip, CONFIG.cell_clip)
    h = (torch.sigmoid(o) * torch.tanh(c)) @ weights[f"bilm.lstm.project.{layer}"][way]
    return h.clamp(-CONFIG.projection_clip, CONFIG.projection_clip), c


def loss_of(
    weights: dict[str, Tensor], window: Window, states: dict[tuple[int, int, int], tuple], step: int
) -> tuple[Tensor, list[float]]:
    """½ (mean forward + mean backward) × window, one row, one step, one layer at a time."""
    x_NP = [encode(weights, row) for row in torch.from_numpy(window.characters_NK).long()]
    sums = []
    for way in (0, 1):
        draw = candidates(step, way)
        total = torch.zeros((), dtype=torch.float64)
        for row in range(ROWS):
            for t in range(WINDOW):
                x = x_NP[window.index_STB[way, t, row]]
                for layer in range(CONFIG.layers):
                    h, c = next_state(weights, way, layer, x, states[way, row, layer])
                    states[way, row, layer] = (h, c)
                    x = h if layer == 0 else h + x
                total = total + sampled(weights, x, int(window.targets_STB[way, t, row]), draw)
        sums.append(total)
    mean = (sums[0] + sums[1]) / (2 * ROWS * WINDOW)
    return mean * WINDOW, [s.item() for s in sums]


def candidates(step: int, way: int) -> tuple[list[int], int]:
    """Drawn by inversion from log-uniform until enough distinct ones came, and how many it took.

    Only the random numbers are those of the package; what is made of them is written out here.
    """
    from elmo.train.step_input import _make_seed

    random = np.random.Generator(np.random.Philox(_make_seed(6, step, 0, way)))
    drawn: list[int] = []
    tries = 0
    for u in random.random(2 * SAMPLES):
        tries += 1
        word = int(math.exp(u * math.log(len(WORDS) + 1))) - 1
        if word not in drawn:
            drawn.append(word)
        if len(drawn) == SAMPLES:
            return drawn, tries
    raise AssertionError("this seed needs a second batch of numbers; choose another")


def sampled(
    weights: dict[str, Tensor], h: Tensor, target: int, draw: tuple[list[int], int]
) -> Tensor:
    words, tries = draw

    def logit(word: int) -> Tensor:
        p = math.log((word + 2) / (word + 1)) / math.log(len(WORDS) + 1)
        expected = -math.expm1(tries * math.log1p(-p))
        score = h @ weights["softmax.weight"][word] + weights["softmax.bias"][word]
        return score - math.log(expected)

    logits = [logit(target), *(logit(word) for word in words if word != target)]
    return torch.stack(logits).logsumexp(0) - logits[0]


def networks() -> tuple[BiLM, Softmax, dict[str, Tensor], dict[str, Tensor]]:
    """The network and its softmax, their weights by name, and a copy of these in float64."""
    bilm, softmax = BiLM(CONFIG, character_count=261), Softmax(len(WORDS), CONFIG.projection)
    bilm.reset_parameters(1)
    softmax.reset_parameters(2)
    ours = {f"bilm.{n}": p.data for n, p in bilm.named_parameters()}
    ours |= {f"softmax.{n}": p.data for n, p in softmax.named_parameters()}
    for value in ours.values():
        value.mul_(1.5)
    return bilm, softmax, ours, {n: p.double().requires_grad_() for n, p in ours.items()}


def zero_states() -> dict[tuple[int, int, int], tuple[Tensor, Tensor]]:
    """The state before the first step, by direction, row and layer."""
    zero = (torch.zeros(4, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))
    return {(way, row, k): zero for way in (0, 1) for row in range(ROWS) for k in (0, 1)}


@pytest.mark.parametrize("by_onednn", [False, True])
def test_three_steps_of_the_2018_recipe(
    by_onednn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_onednn and not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "mkl_lacks_avx512", lambda: by_onednn)
    bilm, softmax, ours, theirs = networks()
    sums = {n: torch.ones_like(p) for n, p in theirs.items()}
    optimizer = Optimizer(SETTINGS.optimizer, ours, steps=3)
    stepper = Stepper(bilm, softmax, optimizer, SETTINGS, WorkerGroup())
    state, states = bilm.lstm.zero_state(ROWS), zero_states()
    random = np.random.default_rng(3)
    sentences = [[WORDS[k] for k in random.integers(2, 14, 2 + j % 5)] for j in range(20)]
    clipped = []
    for step, window in enumerate(windows(tmp_path, sentences, block_sentences=3)[:3]):
        measured, state = stepper.step(window, state, step=step)
        states = {key: (h.detach(), c.detach()) for key, (h, c) in states.items()}
        loss, nats = loss_of(theirs, window, states, step)
        names = list(theirs)
        gradients = dict(zip(names, torch.autograd.grad(loss, list(theirs.values())), strict=True))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        assert measured.nats_by_direction == pytest.approx(nats, rel=1e-5)
        assert measured.gradient_norm == pytest.approx(norm, rel=1e-4)
        clipped.append(norm > 0.5)
        with torch.no_grad():
            for name, gradient in gradients.items():
                gradient = gradient * (0.5 / max(norm, 0.5))
                sums[name] += gradient**2
                theirs[name] -= 0.2 * gradient / sums[name].sqrt()
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value.detach(), atol=2e-6, err_msg=name)
    assert all(clipped), "the clip is part of this test"
