"""Updates against torch's own optimizers, and rows against the whole matrix."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from elmo import settings as of
from elmo.errors import ElmoError
from elmo.optimizer import Optimizer, global_norm

ADAGRAD = of.Optimizer(
    name="adagrad", lr=0.2, warmup_steps=0, decay="constant", final_lr=1.0, clip=10.0,
    accumulator=1.0, beta1=0.0, beta2=0.0, epsilon=0.0, weight_decay=0.0,
)  # fmt: skip
ADAMW = of.Optimizer(
    name="adamw", lr=0.01, warmup_steps=0, decay="constant", final_lr=1.0, clip=1.0,
    accumulator=0.0, beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1,
)  # fmt: skip


def matrix(seed: int) -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))


def take(optimizer: Optimizer, gradient: Tensor, step: int, lr: float) -> None:
    optimizer.update({"w": gradient}, step=step, lr=lr, lr_of={}, rows={})


@pytest.mark.parametrize("settings", [ADAGRAD, ADAMW], ids=["adagrad", "adamw"])
def test_dense_updates_are_torchs_own(settings: of.Optimizer) -> None:
    ours, theirs = matrix(0), matrix(0).requires_grad_()
    optimizer = Optimizer(settings, {"w": ours})
    reference: torch.optim.Optimizer
    if settings.name == "adagrad":
        reference = torch.optim.Adagrad([theirs], lr=0.2, initial_accumulator_value=1.0, eps=0.0)
    else:
        reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(5):
        theirs.grad = matrix(10 + step)
        take(optimizer, matrix(10 + step), step, settings.lr)
        reference.step()
        torch.testing.assert_close(ours, theirs.detach())


def test_adagrad_on_rows_equals_the_dense_result() -> None:
    rows, whole = matrix(0), matrix(0)
    by_rows, dense = Optimizer(ADAGRAD, {"w": rows}), Optimizer(ADAGRAD, {"w": whole})
    for step in range(5):
        at = torch.tensor([[0, 2], [2, 5], [1, 2], [0, 1], [3, 4]][step])
        gradient = matrix(10 + step)[at]
        by_rows.update({"w": gradient}, step=step, lr=0.2, lr_of={}, rows={"w": at})
        scattered = torch.zeros(6, 3).index_copy_(0, at, gradient)
        take(dense, scattered, step, 0.2)
        torch.testing.assert_close(rows, whole)
        torch.testing.assert_close(by_rows.slots, dense.slots)


def test_adamw_on_rows_leaves_unused_rows_alone_and_moves_used_ones_as_adam_would() -> None:
    """A slow version: each row has moments of its own, which rest while it is not used."""
    w, slow = matrix(0), matrix(0).double()
    optimizer = Optimizer(ADAMW, {"w": w})
    mean, square = torch.zeros(6, 3).double(), torch.zeros(6, 3).double()
    for step in range(6):
        at = [[0, 2], [2, 5], [1, 2], [0, 1], [3, 4], [0, 5]][step]
        gradient = matrix(10 + step)[at]
        optimizer.update(
            {"w": gradient}, step=step, lr=0.01, lr_of={}, rows={"w": torch.tensor(at)}
        )
        for row, g in zip(at, gradient.double(), strict=True):
            slow[row] -= 0.01 * 0.1 * slow[row]
            mean[row] = 0.9 * mean[row] + 0.1 * g
            square[row] = 0.99 * square[row] + 0.01 * g * g
            best_mean = mean[row] / (1 - 0.9 ** (step + 1))
            best_square = square[row] / (1 - 0.99 ** (step + 1))
            slow[row] -= 0.01 * best_mean / (best_square.sqrt() + 1e-8)
        torch.testing.assert_close(w.double(), slow, rtol=1e-5, atol=1e-6)


def test_every_row_used_is_the_dense_update() -> None:
    for settings in (ADAGRAD, ADAMW):
        rows, whole = matrix(0), matrix(0)
        by_rows, dense = Optimizer(settings, {"w": rows}), Optimizer(settings, {"w": whole})
        for step in range(3):
            by_rows.update(
                {"w": matrix(step)}, step=step, lr=0.1, lr_of={}, rows={"w": torch.arange(6)}
            )
            take(dense, matrix(step), step, 0.1)
        torch.testing.assert_close(rows, whole)


def test_weight_decay_spares_biases() -> None:
    bias = torch.ones(4)
    optimizer = Optimizer(ADAMW, {"b": bias})
    optimizer.update({"b": torch.zeros(4)}, step=0, lr=0.5, lr_of={}, rows={})
    assert torch.equal(bias, torch.ones(4))


def test_a_parameter_with_rate_0_and_its_slots_stay() -> None:
    w = matrix(0)
    optimizer = Optimizer(ADAGRAD, {"w": w})
    optimizer.update({"w": matrix(1)}, step=0, lr=0.2, lr_of={"w": 0.0}, rows={})
    assert torch.equal(w, matrix(0))
    assert torch.equal(optimizer.slots["w.sum"], torch.ones(6, 3))


def test_lr_of_multiplies_the_rate_of_a_parameter() -> None:
    half, full = matrix(0), matrix(0)
    for w, share in ((half, 0.5), (full, 1.0)):
        optimizer = Optimizer(ADAGRAD, {"w": w})
        optimizer.update({"w": matrix(1)}, step=0, lr=0.2, lr_of={"w": share}, rows={})
    torch.testing.assert_close(half - matrix(0), (full - matrix(0)) / 2)


def test_the_global_norm_is_that_of_all_gradients_in_one_vector() -> None:
    gradients = [matrix(0), torch.randn(5), torch.randn(2, 2, 2)]
    together = torch.cat([g.flatten() for g in gradients])
    assert math.isclose(global_norm(gradients), float(together.norm()), rel_tol=1e-6)


def test_the_learning_rate_warms_up_and_decays() -> None:
    settings = replace(ADAMW, lr=1.0, warmup_steps=4, final_lr=0.1)
    linear = [replace(settings, decay="linear").lr_at(step, 24) for step in range(25)]
    assert linear[:4] == [0.25, 0.5, 0.75, 1.0]
    assert linear[4] == 1.0
    assert math.isclose(linear[14], 0.55)
    assert math.isclose(linear[24], 0.1)
    cosine = [replace(settings, decay="cosine").lr_at(step, 24) for step in range(30)]
    assert math.isclose(cosine[14], 0.55)
    assert math.isclose(cosine[24], 0.1) and math.isclose(cosine[29], 0.1)
    assert all(a >= b for a, b in zip(cosine[4:], cosine[5:], strict=False))
    assert [ADAGRAD.lr_at(step, 24) for step in (0, 23)] == [0.2, 0.2]


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"name": "sgd"}, "optimizer.name"), ({"decay": "step"}, "decay"), ({"lr": 0.0}, "lr")],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, object], named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        replace(ADAMW, **changed)  # type: ignore[arg-type]
