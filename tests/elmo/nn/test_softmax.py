"""Losses against dense ones written out, their gradients, and the sampler against its formula."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from elmo.data.arrays import index_table
from elmo.nn import softmax
from elmo.nn.softmax import (
    CandidateDraw,
    LossRows,
    SampledWords,
    Softmax,
    full_softmax_loss,
    negative_log_likelihoods,
    new_softmax,
    restore_softmax,
    sample_candidates,
)
from tests.elmo.watching import Watching

N, P, V = 23, 6, 40


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """h (N, P), targets (N), weight (V, P), bias (V), the floats as leaves."""
    generator = torch.Generator().manual_seed(1)
    h_NP = torch.randn(N, P, generator=generator)
    weight_VP = torch.randn(V, P, generator=generator)
    bias_V = torch.randn(V, generator=generator)
    targets_N = torch.randint(V, (N,), generator=generator)
    return h_NP.requires_grad_(), targets_N, weight_VP.requires_grad_(), bias_V.requires_grad_()


def drawn(seed: int = 0, count: int = 12) -> SampledWords:
    return sample_candidates(count, V, np.random.default_rng(seed))


def expected_counts(words: np.ndarray, tries: int) -> np.ndarray:
    """How often a word comes up at least once in `tries` log-uniform draws."""
    p = np.log((words + 2) / (words + 1)) / np.log(V + 1)
    return 1 - (1 - p) ** tries


def slow_sampled_nats(
    h_NP: Tensor, targets_N: Tensor, weight_VP: Tensor, bias_V: Tensor, candidates: SampledWords
) -> Tensor:
    """TensorFlow's sampled softmax, a prediction at a time."""
    nats = []
    for h, target in zip(h_NP, targets_N.tolist(), strict=True):
        words = [target, *(w for w in candidates.words.tolist() if w != target)]
        counts = expected_counts(np.array(words), candidates.tries)
        logits = weight_VP[words] @ h + bias_V[words] - torch.from_numpy(np.log(counts)).float()
        nats.append(logits.logsumexp(0) - logits[0])
    return torch.stack(nats)


def sampled_loss(
    h_NP: Tensor,
    targets_N: np.ndarray,
    weight_UP: Tensor,
    bias_U: Tensor,
    *,
    word_rows: np.ndarray,
    candidates: SampledWords,
) -> tuple[Tensor, Tensor]:
    """The loss of candidates and targets that are looked up in the word rows here."""
    draw = CandidateDraw.prepare(targets_N, candidates, h_NP.device)
    rows = LossRows.find(targets_N, draw.words, index_table(word_rows, V), h_NP.device)
    return softmax.sampled_softmax_loss(h_NP, weight_UP, bias_U, draw, rows)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 22])
def test_full_loss_and_its_gradients_are_the_cross_entropy(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "MIN_CHUNK_PREDICTIONS", 1)
    monkeypatch.setattr(softmax, "CHUNK_LOGITS", chunk)
    h, targets, weight, bias = inputs()
    loss, nats = full_softmax_loss(h, targets, weight, bias)
    found = torch.autograd.grad(3 * loss, (h, weight, bias))
    expected = torch.nn.functional.cross_entropy(h @ weight.T + bias, targets, reduction="none")
    torch.testing.assert_close(nats, expected.detach())
    torch.testing.assert_close(loss.detach(), expected.sum().detach())
    slow = torch.autograd.grad(3 * expected.sum(), (h, weight, bias))
    torch.testing.assert_close(found, slow)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 22])
def test_sampled_loss_and_its_gradients_are_those_of_the_dense_formula(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "MIN_CHUNK_PREDICTIONS", 1)
    monkeypatch.setattr(softmax, "CHUNK_LOGITS", chunk)
    h, targets, weight, bias = inputs()
    candidates = drawn()
    assert set(targets.tolist()) & set(candidates.words.tolist()), "no accidental hit is tried"
    rows = np.union1d(targets.numpy(), candidates.words)
    weight_UP = weight.detach()[rows].requires_grad_()
    bias_U = bias.detach()[rows].requires_grad_()
    loss, nats = sampled_loss(
        h, targets.numpy(), weight_UP, bias_U, word_rows=rows, candidates=candidates
    )
    found = torch.autograd.grad(loss, (h, weight_UP, bias_U))
    expected = slow_sampled_nats(h, targets, weight, bias, candidates)
    torch.testing.assert_close(nats, expected.detach(), rtol=1e-4, atol=1e-5)
    dense = torch.autograd.grad(expected.sum(), (h, weight, bias))
    torch.testing.assert_close(found[0], dense[0], rtol=1e-4, atol=1e-5)
    for part, whole in zip(found[1:], dense[1:], strict=True):
        torch.testing.assert_close(part, whole[rows], rtol=1e-4, atol=1e-5)
        others = np.setdiff1d(np.arange(V), rows)
        assert torch.count_nonzero(whole[others]) == 0, "rows that are not used have no gradient"


def test_a_target_far_above_all_candidates_does_not_overflow() -> None:
    h, targets, weight, bias = (tensor.detach() for tensor in inputs())
    given = (100 * h, targets.numpy(), weight, bias)
    nats = sampled_loss(*given, word_rows=np.arange(V), candidates=drawn())[1]
    expected = slow_sampled_nats(100 * h, targets, weight, bias, drawn())
    torch.testing.assert_close(nats, expected, rtol=1e-4, atol=1e-3)


def test_with_every_word_sampled_the_sampled_loss_is_the_full_one() -> None:
    h, targets, weight, bias = inputs()
    how = {"word_rows": np.arange(V), "candidates": drawn(count=V)}
    sampled = sampled_loss(h, targets.numpy(), weight, bias, **how)
    torch.testing.assert_close(sampled, full_softmax_loss(h, targets, weight, bias))


def test_candidates_are_distinct_sorted_and_as_many_as_asked() -> None:
    for seed in range(20):
        words = drawn(seed).words
        assert len(words) == 12
        assert (np.diff(words) > 0).all()
        assert words[0] >= 0 and words[-1] < V


def test_words_are_drawn_as_often_as_the_expected_counts_say() -> None:
    rounds = 4000
    seen, expected = np.zeros(V), np.zeros(V)
    for seed in range(rounds):
        candidates = sample_candidates(8, V, np.random.default_rng(seed))
        seen[candidates.words] += 1
        expected += np.exp(candidates.log_expected_counts(np.arange(V)))
    np.testing.assert_allclose(seen / rounds, expected / rounds, atol=0.03)
    assert abs(expected.sum() / rounds - 8) < 0.4


def test_nothing_of_the_size_of_predictions_times_words_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(softmax, "MIN_CHUNK_PREDICTIONS", 1)
    monkeypatch.setattr(softmax, "CHUNK_LOGITS", 3000)
    h_NP = torch.randn(500, 4, requires_grad=True)
    weight_VP, bias_V = torch.randn(1000, 4), torch.zeros(1000)
    with Watching() as seen:
        loss, _ = full_softmax_loss(h_NP, torch.arange(500), weight_VP, bias_V)
        loss.backward()
    assert max(math.prod(shape) for one in seen.operations for shape in one.shapes) <= 4000


@pytest.mark.parametrize("samples", [None, 12])
def test_bfloat16_outputs_give_nearly_the_same_loss_and_gradients(samples: int | None) -> None:
    h, targets, weight, bias = inputs()
    found = []
    for to in (torch.float32, torch.bfloat16):
        if samples is None:
            loss, _ = full_softmax_loss(h.to(to), targets, weight, bias)
        else:
            how = {"word_rows": np.arange(V), "candidates": drawn(1, samples)}
            loss, _ = sampled_loss(h.to(to), targets.numpy(), weight, bias, **how)
        found.append((loss, *torch.autograd.grad(loss, (h, weight, bias))))
    for exact, near in zip(*found, strict=True):
        assert near.dtype == torch.float32
        assert (near - exact).norm() < 0.02 * exact.norm()


def test_new_words_leave_the_rows_of_old_ones() -> None:
    old = new_softmax(V, P, seed=1)
    new = restore_softmax(dict(old.state_dict()), word_count=V + 5, seed=2)
    assert new.weight.shape == (V + 5, P) and new.bias.shape == (V + 5,)
    assert torch.equal(new.weight[:V], old.weight)
    assert bool((new.weight[V:] != 0).any())


def test_weights_are_drawn_as_in_2018_and_follow_the_seed() -> None:
    first, second = Softmax(5000, 16), Softmax(5000, 16)
    first.reset_parameters(1)
    second.reset_parameters(1)
    torch.testing.assert_close(first.weight, second.weight, rtol=0, atol=0)
    assert math.isclose(float(first.weight.detach().std()), 0.25, rel_tol=0.02)
    assert not first.bias.any()


_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.mm.out,
    torch.ops.mkldnn._linear_pointwise.default,
)


def test_evaluation_over_many_words_takes_few_products_that_fit_a_cache() -> None:
    """With 800,000 words one prediction at a time would be a product for each."""
    words, predictions = 800_000, 128
    chosen = Softmax(words, 2)
    chosen.reset_parameters(1)
    h_NP, targets = torch.randn(predictions, 2), torch.randint(words, (predictions,))
    targets[70] = words - 1  # in the last block, a short one
    with Watching() as seen:
        nats = negative_log_likelihoods(chosen, h_NP, targets)
    products = [math.prod(one.shapes[0]) for one in seen.operations if one.function in _PRODUCTS]
    assert max(products) <= softmax.CHUNK_LOGITS
    assert len(products) * max(products) < 1.1 * words * predictions  # none is small
    assert len(products) < predictions
    some = torch.tensor([0, 70, 127])
    expected = torch.nn.functional.cross_entropy(
        h_NP[some] @ chosen.weight.T + chosen.bias, targets[some], reduction="none"
    )
    torch.testing.assert_close(nats[some], expected.detach(), rtol=1e-5, atol=1e-5)


def test_the_full_loss_takes_64_predictions_at_a_time_or_more() -> None:
    words = 100_000
    h_NP, targets = torch.randn(256, 2), torch.randint(words, (256,))
    with torch.no_grad(), Watching() as seen:
        full_softmax_loss(h_NP, targets, torch.randn(words, 2), torch.zeros(words))
    assert sum(one.function in _PRODUCTS for one in seen.operations) == 4
