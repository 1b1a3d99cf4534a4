"""The module for downstream code gives the embedder's vectors, mixed."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from elmo.model.mix import Elmo, ScalarMix
from tests.elmo.conftest import batch_to_ids
from tests.golden import derivation
from tests.golden.models import copy_golden

SENTENCES = [["he", "has", "a", "gift"], ["gift"], ["한국어", "for", "the", "x" * 60, "😀", "he"]]


def test_ids_are_shifted_by_one_and_masked_with_zeros() -> None:
    ids = batch_to_ids([["a"], ["<S>", "b"]])
    assert ids.shape == (2, 2, 50)
    assert ids[0, 0, :4].tolist() == [259, 98, 260, 261]
    assert ids[1, 0, :4].tolist() == [259, 257, 260, 261]
    assert ids[0, 1].abs().max() == 0
    assert batch_to_ids([]).shape == (0, 0, 50)


@pytest.mark.parametrize("trainable", [False, True])
def test_it_gives_the_embedders_vectors(
    tiny_model: Model, trainable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.model.mix.TOKENS_AT_ONCE", 9)  # three time steps of three sentences
    expected = Embedder(tiny_model).embed(SENTENCES)
    elmo = Elmo(tiny_model, 2, dropout=0.0, trainable=trainable)
    with torch.no_grad():
        elmo.mixes[1].weights.copy_(torch.tensor([1.0, -1.0, 0.5]))
        elmo.mixes[1].gamma.fill_(3.0)
    (plain, weighed), mask = elmo(batch_to_ids(SENTENCES)).values()
    share = 3 * torch.tensor([1.0, -1.0, 0.5]).softmax(0).numpy()
    assert mask.sum(1).tolist() == [4, 1, 6]
    for row, vectors in enumerate(expected):
        n = vectors.shape[1]
        np.testing.assert_allclose(plain[row, :n].detach(), vectors.mean(0), atol=1e-5)
        mixed = np.tensordot(share, vectors, 1)
        np.testing.assert_allclose(weighed[row, :n].detach(), mixed, atol=1e-5)
        assert plain[row, n:].abs().sum() == 0


def test_a_gap_in_the_ids_is_refused(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model)
    ids_BTK = elmo.batch_to_ids([["he", "has", "a"]])
    ids_BTK[0, 1] = 0
    with pytest.raises(ElmoError, match="ids have padding before a token"):
        elmo(ids_BTK)


def test_boundaries_can_be_kept(tiny_model: Model) -> None:
    inner = Elmo(tiny_model, dropout=0.0)(batch_to_ids(SENTENCES))["elmo_representations"][0]
    kept = Elmo(tiny_model, dropout=0.0, keep_sentence_boundaries=True)
    (whole,), mask = kept(batch_to_ids(SENTENCES)).values()
    assert mask.sum(1).tolist() == [6, 3, 8]
    torch.testing.assert_close(whole[0, 1:5], inner[0, :4])
    assert whole[1, 0].abs().sum() > 0


@pytest.mark.parametrize("convention", ["bilm-tf", "allennlp"])
def test_layer_norm_of_both_conventions(convention: str, tmp_path: Path) -> None:
    """Against numpy, over all values of the batch, with or without the boundaries."""
    from elmo.interop.files_of_2018 import import_2018

    options, file, _ = copy_golden("plain", tmp_path)
    import_2018(options, file, tmp_path / "m", vocabulary=None)
    weights, described = derivation.load(file), json.loads(options.read_text())
    whole = [derivation.embed(weights, described, s)[0] for s in SENTENCES]
    used = [w if convention == "allennlp" else w[:, 1:-1] for w in whole]
    values = np.concatenate([u.reshape(3, -1) for u in used], 1)
    mean, std = values.mean(1), values.std(1)
    elmo = Elmo(tmp_path / "m", dropout=0.0, layer_norm=convention)  # type: ignore[arg-type]
    (found,), _ = elmo(batch_to_ids(SENTENCES)).values()
    for row, layers in enumerate(whole):
        normed = (layers[:, 1:-1] - mean[:, None, None]) / std[:, None, None]
        n = normed.shape[1]
        np.testing.assert_allclose(found[row, :n].detach(), normed.mean(0), atol=1e-5)


def test_frozen_or_trainable(tiny_model: Model) -> None:
    for trainable in (False, True):
        elmo = Elmo(tiny_model, trainable=trainable)
        (vectors,), _ = elmo(batch_to_ids(SENTENCES)).values()
        (vectors.square().sum() + 0.001 * elmo.l2()).backward()
        assert elmo.mixes[0].weights.grad is not None
        grads = [p.grad is not None for p in elmo.bilm.parameters()]
        assert all(grads) if trainable else not any(grads)


def test_l2_is_the_sum_of_squares(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model, 2)
    with torch.no_grad():
        for mix in elmo.mixes:
            mix.weights.copy_(torch.tensor([1.0, 2.0, -2.0]))
    assert elmo.mixes[0].l2().item() == 9.0 and elmo.l2().item() == 18.0


def test_saved_pickled_and_restored(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model, dropout=0.0).eval()
    with torch.no_grad():
        elmo.mixes[0].weights.copy_(torch.tensor([0.1, 0.2, 0.3]))
    file = io.BytesIO()
    torch.save(elmo, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    restored = Elmo(tiny_model, dropout=0.0)
    restored.load_state_dict(elmo.state_dict())
    ids = batch_to_ids(SENTENCES)
    for other in (pickled, restored):
        torch.testing.assert_close(
            other(ids)["elmo_representations"][0], elmo(ids)["elmo_representations"][0]
        )


@pytest.mark.parametrize("layer_norm", [None, "bilm-tf", "allennlp"])
@pytest.mark.parametrize("sentences", [[], [[]], [[], []]])
def test_a_batch_without_tokens_has_no_vectors(
    tiny_model: Model, sentences: list[list[str]], layer_norm: Any
) -> None:
    elmo = Elmo(tiny_model, layer_norm=layer_norm, trainable=True)
    (vectors,), mask = elmo(sentences).values()
    assert vectors.shape == (len(sentences), 0, 8) and mask.shape == (len(sentences), 0)
    (masked,), mask = elmo(torch.zeros(2, 3, 50, dtype=torch.long)).values()
    assert masked.shape == (2, 3, 8) and not masked.any() and not mask.any()
    kept = Elmo(tiny_model, keep_sentence_boundaries=True)
    (vectors,), mask = kept(sentences).values()
    assert vectors.shape == (len(sentences), 2, 8) and mask.sum() == 2 * len(sentences)


@pytest.mark.slow
def test_autocast_is_near_and_compile_is_equal(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model, dropout=0.0).eval()
    ids = batch_to_ids(SENTENCES)
    exact = elmo(ids)["elmo_representations"][0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = elmo(ids)["elmo_representations"][0]
    error = (rough.float() - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.05
    compiled = torch.compile(elmo, backend="eager")
    torch.testing.assert_close(compiled(ids)["elmo_representations"][0], exact)


def test_dropout_is_for_training_only(tiny_model: Model) -> None:
    elmo = Elmo(tiny_model, dropout=0.5)
    ids = batch_to_ids(SENTENCES)
    first, second = elmo(ids)["elmo_representations"][0], elmo(ids)["elmo_representations"][0]
    assert not torch.equal(first, second)
    elmo.eval()
    assert torch.equal(elmo(ids)["elmo_representations"][0], elmo(ids)["elmo_representations"][0])


def test_bad_settings_are_refused(tiny_model: Model) -> None:
    with pytest.raises(ElmoError, match="layer_norm must be"):
        ScalarMix(3, layer_norm="batch")  # type: ignore[arg-type]
    for layers in (-1, "3", True, 2.0):
        with pytest.raises(ElmoError, match="layers must be a whole number of 1 or more"):
            ScalarMix(layers)  # type: ignore[arg-type]
        with pytest.raises(ElmoError, match="representations must be a whole number"):
            Elmo(tiny_model, layers)  # type: ignore[arg-type]
    with pytest.raises(ElmoError, match="dropout must be a number of at least 0 and at most 1"):
        Elmo(tiny_model, dropout=True)
    with pytest.raises(ElmoError, match="layers must be .3, .* to mix, found .2, 1, 1, 4"):
        ScalarMix(3)(torch.zeros(2, 1, 1, 4), torch.ones(1, 1))
