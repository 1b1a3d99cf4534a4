"""Updates against torch's own optimizers, and rows against the whole matrix."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.errors import ElmoError
from elmo.nn.bilm import BiLM
from elmo.nn.softmax import Softmax
from elmo.settings import OptimizerSettings
from elmo.train.optimizer import Optimizer, WordRows
from tests.elmo.run_job import ADAGRAD, NETWORK, OPTIMIZER

ADAMW = replace(
    OPTIMIZER, lr=0.01, warmup_steps=0, decay="constant", final_lr=1.0, weight_decay=0.1
)


def matrix(seed: int) -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))


def make(settings: OptimizerSettings, w: Tensor, *, by_word_rows: bool = False) -> Any:
    names = ["w"] if by_word_rows else []
    return Optimizer(settings, {"w": w}, steps=1000, word_matrix=names)


def take(optimizer: Optimizer, gradient: Tensor, step: int, rows: Tensor | None = None) -> None:
    used = {} if rows is None else {"w": WordRows(rows.numpy(), rows)}
    for name in used:
        optimizer.catch_up(name, used[name].indices, step=step)
    optimizer.update({"w": gradient}, step=step, word_rows=used)


@pytest.mark.parametrize("settings", [ADAGRAD, replace(ADAGRAD, epsilon=0.5), ADAMW])
def test_dense_updates_are_torchs_own(settings: OptimizerSettings) -> None:
    ours, theirs = matrix(0), matrix(0).requires_grad_()
    optimizer = make(settings, ours)
    reference: torch.optim.Optimizer
    if settings.name == "adagrad":
        options: Any = {"initial_accumulator_value": 1.0, "eps": settings.epsilon}
        reference = torch.optim.Adagrad([theirs], lr=0.2, **options)
    else:
        reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(5):
        theirs.grad = matrix(10 + step)
        take(optimizer, matrix(10 + step), step)
        reference.step()
        torch.testing.assert_close(ours, theirs.detach())


def test_adagrad_on_rows_equals_the_dense_result() -> None:
    rows, whole = matrix(0), matrix(0)
    by_word_rows, dense = make(ADAGRAD, rows, by_word_rows=True), make(ADAGRAD, whole)
    for step in range(5):
        used = torch.tensor([[0, 2], [2, 5], [1, 2], [0, 1], [3, 4]][step])
        gradient = matrix(10 + step)[used]
        take(by_word_rows, gradient, step, used)
        take(dense, torch.zeros(6, 3).index_copy_(0, used, gradient), step)
        torch.testing.assert_close(rows, whole)
        torch.testing.assert_close(by_word_rows.slots, dense.slots)


V, STEPS = 40, 300


def sparse_steps() -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of each step, row 0 in all and the last in one of forty, with their gradients."""
    random = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        rows = torch.from_numpy(np.flatnonzero(random.random(V) < 1 / np.arange(1, V + 1)))
        yield rows, torch.randn(len(rows), 4, generator=generator)


def torchs_adamw(settings: OptimizerSettings, start: Tensor) -> Tensor:
    """The same steps by torch.optim.AdamW over the whole matrix."""
    w = start.clone().requires_grad_()
    reference = torch.optim.AdamW(
        [w], betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay
    )
    for step, (rows, gradient) in enumerate(sparse_steps()):
        w.grad = torch.zeros_like(w).index_copy_(0, rows, gradient)
        reference.param_groups[0]["lr"] = settings.learning_rate_at(step, STEPS)
        reference.step()
    return w.detach()


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.99), (0.9, 0.999), (0.0, 0.99)])
def test_adamw_on_sparse_rows_is_torchs_adamw_on_the_whole_matrix(
    beta1: float, beta2: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.train.optimizer.WORD_ROWS_AT_ONCE", 16)
    settings = replace(ADAMW, beta1=beta1, beta2=beta2, warmup_steps=10, decay="cosine")
    start = torch.randn(V, 4, generator=torch.Generator().manual_seed(1))
    expected = torchs_adamw(settings, start)
    w = start.clone()
    optimizer = Optimizer(settings, {"w": w}, steps=STEPS, word_matrix=["w"])
    for step, (rows, gradient) in enumerate(sparse_steps()):
        take(optimizer, gradient, step, rows)
    before = w.clone()
    with optimizer.temporarily_caught_up(step=STEPS):
        seen = w.clone()
    assert torch.equal(w, before)  # an evaluation leaves no trace
    optimizer.catch_up_all(step=STEPS)
    assert torch.equal(w, seen)
    torch.testing.assert_close(w, expected, rtol=1e-4, atol=1e-5)


def test_catching_up_after_a_restart_is_catching_up_without_one() -> None:
    """What a checkpoint holds is enough: the learning rates of missed steps come from settings."""
    whole, cut = matrix(0), matrix(0)
    one, two = make(ADAMW, whole, by_word_rows=True), make(ADAMW, cut, by_word_rows=True)
    for step in range(9):
        if step == 5:
            slots = {name: slot.clone() for name, slot in two.slots.items()}
            two = make(ADAMW, cut, by_word_rows=True)
            for name, slot in slots.items():
                two.slots[name].copy_(slot)
        used = torch.tensor([[0, 2], [2, 5], [1]][step % 3])
        for optimizer in (one, two):
            take(optimizer, matrix(step)[used], step, used)
    with two.temporarily_caught_up(step=40):
        pass  # what a later step needed does not count
    for optimizer in (one, two):
        optimizer.catch_up_all(step=9)
    assert torch.equal(whole, cut)


def test_weight_decay_spares_the_biases_of_the_real_model_and_nothing_else() -> None:
    """By role, not by shape: the biases of the LSTMs have two axes here."""
    bilm = BiLM(NETWORK, character_count=261)
    modules = {"bilm": bilm, "softmax": Softmax(9, NETWORK.projection)}
    parameters = {
        name: torch.nn.init.ones_(parameter).data
        for prefix, module in modules.items()
        for name, parameter in module.named_parameters(prefix)
    }
    optimizer = Optimizer(ADAMW, parameters, steps=10)
    nothing = {name: torch.zeros_like(value) for name, value in parameters.items()}
    optimizer.update(nothing, step=0, word_rows={})
    spared = {name for name, value in parameters.items() if bool((value == 1).all())}
    assert spared == {name for name in parameters if "bias" in name}
    assert {"bilm.lstm.bias.0", "bilm.encoder.conv_bias.0", "softmax.bias"} < spared


def test_the_learning_rate_warms_up_and_decays() -> None:
    settings = replace(ADAMW, lr=1.0, warmup_steps=4, final_lr=0.1)
    linear = [replace(settings, decay="linear").learning_rate_at(step, 24) for step in range(25)]
    assert linear[:4] == [0.25, 0.5, 0.75, 1.0]
    assert linear[4] == 1.0
    assert math.isclose(linear[14], 0.55)
    assert math.isclose(linear[24], 0.1)
    cosine = [replace(settings, decay="cosine").learning_rate_at(step, 24) for step in range(30)]
    assert math.isclose(cosine[14], 0.55)
    assert math.isclose(cosine[24], 0.1) and math.isclose(cosine[29], 0.1)
    assert all(a >= b for a, b in zip(cosine[4:], cosine[5:], strict=False))
    assert [ADAGRAD.learning_rate_at(step, 24) for step in (0, 23)] == [0.2, 0.2]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"beta1": 0.9, "beta2": 0.8}, "adamw needs beta1² < beta2"),
        ({"name": "sgd"}, "name must be one of"),
        ({"epsilon": 0.0}, "epsilon 0 divides by 0"),
        ({"name": "adagrad", "epsilon": 0.0, "accumulator": 0.0}, "epsilon 0 divides by 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, object], named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        replace(ADAMW, **changed)  # type: ignore[arg-type]
