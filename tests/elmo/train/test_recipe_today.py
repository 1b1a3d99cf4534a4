"""Three training steps of today's recipe against plain autograd and torch's own AdamW, in float64.

Dropout between layers, state reset at sentences, one draw of candidates for both directions, a
last window that is half empty, words that a step does not use. Masks of dropout are those of
`elmo.nn.dropout`; which mask is applied where is written out here.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.data.stream import Window
from elmo.nn.bilm import BiLM
from elmo.nn.dropout import dropout_keys, dropout_scales
from elmo.nn.softmax import Softmax, sample_candidates
from elmo.train.optimizer import Optimizer, has_weight_decay
from elmo.train.step import Stepper, WorkerGroup
from elmo.train.step_input import StepPreparer, _make_seed
from tests.elmo.run_job import OPTIMIZER, TRAINING
from tests.elmo.train.test_recipe_2018 import (
    CONFIG,
    ROWS,
    WINDOW,
    WORDS,
    encode,
    networks,
    next_state,
    sampled,
    windows,
    zero_states,
)

SAMPLES, SEED, DROPOUT, CLIP = 4, 6, 0.3, 0.2
SETTINGS = replace(
    TRAINING,
    rows=ROWS,
    window=WINDOW,
    reset="sentence",
    samples=SAMPLES,
    draws="shared",
    loss_scale=1.0,
    dropout=DROPOUT,
    optimizer=replace(OPTIMIZER, clip=CLIP, weight_decay=0.1, warmup_steps=2, epsilon=1e-12),
    seed=SEED,
)


def loss_of(
    weights: dict[str, Tensor], window: Window, states: dict[tuple[int, int, int], tuple], step: int
) -> Tensor:
    """Return the sum of −log p of both directions over the predictions of a full window."""
    x_NP = [encode(weights, row) for row in torch.from_numpy(window.characters_NK).long()]
    layers = CONFIG.layers
    keys = [dropout_keys(SEED, step, layer, rows=list(range(ROWS))) for layer in range(layers + 1)]
    shape = (2, WINDOW, ROWS, CONFIG.projection)
    scales_LSTBP = dropout_scales(shape, torch.stack(keys), DROPOUT, torch.float32).double()
    random = np.random.Generator(np.random.Philox(_make_seed(SEED, step)))
    draw = sample_candidates(SAMPLES, len(WORDS), random)
    total = torch.zeros((), dtype=torch.float64)
    for way, row, t in np.ndindex(2, ROWS, WINDOW):
        if not window.mask_TB[t, row]:
            continue
        x = x_NP[window.index_STB[way, t, row]]
        for layer in range(layers):
            x = x * scales_LSTBP[layer, way, t, row]
            h, c = states[way, row, layer]
            if window.reset_TB[t, row]:
                h, c = torch.zeros_like(h), torch.zeros_like(c)
            h, c = next_state(weights, way, layer, x, (h, c))
            states[way, row, layer] = (h, c)
            x = h if layer == 0 else h + x
        x = x * scales_LSTBP[layers, way, t, row]
        target = int(window.targets_STB[way, t, row])
        total = total + sampled(weights, x, target, (draw.words.tolist(), draw.tries))
    return total / (2 * ROWS * WINDOW)


def test_three_steps_with_adamw_and_dropout(tmp_path: Path) -> None:
    bilm, softmax, ours, theirs = networks()
    weights = [p for n, p in theirs.items() if has_weight_decay(n)]
    biases = [p for n, p in theirs.items() if not has_weight_decay(n)]
    chosen = SETTINGS.optimizer
    reference = torch.optim.AdamW(
        [{"params": weights}, {"params": biases, "weight_decay": 0.0}],
        betas=(chosen.beta1, chosen.beta2),
        eps=chosen.epsilon,
        weight_decay=chosen.weight_decay,
    )
    word_matrix = ("softmax.weight", "softmax.bias")
    optimizer = Optimizer(chosen, ours, steps=3, word_matrix=word_matrix)
    stepper = Stepper(bilm, softmax, optimizer, SETTINGS, WorkerGroup())
    state, states = bilm.lstm.zero_state(ROWS), zero_states()
    assert _make_seed(SEED, 2) == 8712014179388824241  # else resuming draws other candidates
    sentences = [[WORDS[2 + (3 * j + k) % 12] for k in range(4)] for j in range(6)]
    found = windows(tmp_path, sentences, block_sentences=1)
    assert [int(window.mask_TB.sum()) for window in found] == [12, 12, 6]
    for step, window in enumerate(found):
        measured, state = stepper.step(window, state, step=step)
        states = {key: (h.detach(), c.detach()) for key, (h, c) in states.items()}
        loss = loss_of(theirs, window, states, step)
        reference.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(theirs.values()), CLIP)
        assert sum(measured.nats_by_direction) == pytest.approx(24 * loss.item(), rel=1e-5)
        assert measured.gradient_norm == pytest.approx(float(norm), rel=1e-4) and norm > CLIP
        for group in reference.param_groups:
            group["lr"] = chosen.learning_rate_at(step, 3)
        reference.step()
        with optimizer.temporarily_caught_up(step=step + 1):
            for name, value in theirs.items():
                expected = value.detach().numpy()
                np.testing.assert_allclose(ours[name], expected, atol=1e-4, err_msg=name)


def test_a_worker_drops_what_one_worker_alone_drops_of_its_rows(tmp_path: Path) -> None:
    window = windows(tmp_path, [[WORDS[3]] * 4] * 6, block_sentences=1)[0]
    places: dict[str, Any] = {"device": torch.device("cpu"), "pad": None, "gather": None}

    def keys(rows: list[int]) -> Tensor:
        preparer = StepPreparer(SETTINGS, vocabulary_size=len(WORDS), layers=3, rows=rows, **places)
        found = preparer.prepare(window, step=1).keys_LB
        assert found is not None
        return found

    assert torch.equal(keys([1, 2]), keys([0, 1, 2])[:, 1:])


def test_workers_exchange_words_that_are_all_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three rows one of two workers has two, with a target for each of both directions."""
    monkeypatch.setattr("torch.distributed.new_group", lambda **_: None)
    monkeypatch.setattr(
        "torch.distributed.all_gather", lambda parts, own, group: [p.copy_(own) for p in parts]
    )
    bilm, softmax = BiLM(CONFIG, character_count=261), Softmax(len(WORDS), CONFIG.projection)
    optimizer = Optimizer(SETTINGS.optimizer, {}, steps=3)
    stepper = Stepper(bilm, softmax, optimizer, SETTINGS, WorkerGroup(rank=0, size=2))
    words = np.arange(2 * WINDOW * 2)
    for part in stepper._gather_words(words):
        np.testing.assert_array_equal(part, words)
