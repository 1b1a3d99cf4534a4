"""The adaptive softmax is a distribution, grows by new words, is saved, and trains anywhere."""

from pathlib import Path

import pytest
import torch

from elmo.model.folder import load_model, save_model
from elmo.nn.adaptive_softmax import AdaptiveSoftmax
from elmo.nn.softmax import (
    Softmax,
    evaluate,
    is_adaptive,
    new_softmax,
    softmax_from,
    words_in,
)
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.perplexity import perplexity
from elmo.train.step import Workers
from tests.elmo.run_job import make_job, sentences

V, P = 60, 8


def state(softmax: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in softmax.state_dict().items()}


@pytest.mark.parametrize("kind", ["adaptive", "full"])
def test_the_probabilities_of_all_words_add_up_to_1(kind: str) -> None:
    softmax = new_softmax(kind, V, P, seed=1)
    h_VP = torch.randn(1, P).expand(V, P)
    nats = evaluate(softmax, h_VP, torch.arange(V))
    assert float(torch.exp(-nats).sum()) == pytest.approx(1, abs=1e-5)


def test_evaluation_in_chunks_is_that_of_the_training_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    softmax = new_softmax("adaptive", V, P, seed=1)
    assert isinstance(softmax, AdaptiveSoftmax)
    h_NP, targets = torch.randn(30, P), torch.randint(V, (30,))
    monkeypatch.setattr("elmo.nn.softmax.EVALUATED", 7)
    expected = softmax.nats(h_NP, targets).detach()
    torch.testing.assert_close(evaluate(softmax, h_NP, targets), expected)


@pytest.mark.parametrize("kind", ["adaptive", "sampled"])
def test_new_words_leave_the_rows_of_old_ones(kind: str) -> None:
    old = state(new_softmax(kind, V, P, seed=1))
    new = state(softmax_from(old, words=V + 5, seed=2))
    assert words_in(old) == V and words_in(new) == V + 5
    assert is_adaptive(old) == is_adaptive(new) == (kind == "adaptive")
    grown = [name for name, tensor in new.items() if len(tensor) != len(old[name])]
    assert len(grown) == (1 if kind == "adaptive" else 2)
    for name, tensor in old.items():
        assert torch.equal(new[name][: len(tensor)], tensor)


def test_weights_of_no_softmax_have_no_words() -> None:
    assert words_in({"other": torch.ones(3)}) == 0


@pytest.mark.slow
def test_it_trains_is_saved_and_gives_the_same_perplexity_when_loaded(tmp_path: Path) -> None:
    job = make_job(tmp_path, softmax="adaptive", epochs=15, evaluate_every=1000, dropout=0.0)
    fit(job, workers=Workers(), report=lambda kind, figures: None)
    found = heldout_perplexity(job, workers=Workers())
    assert found.average < 0.9 * found.unigram  # its clusters are 4 and 2 wide here
    save_model(
        tmp_path / "model",
        bilm=job.bilm,
        vocabulary=job.vocabulary,
        characters=job.characters,
        softmax=state(job.softmax),
        training={},
    )
    heldout = [s for k, s in enumerate(sentences(140)) if k % 7 == 6]
    again = perplexity(load_model(tmp_path / "model"), heldout)
    assert again.average == pytest.approx(found.average, rel=1e-4)


def test_a_softmax_of_another_kind_is_not_mistaken_for_one(tmp_path: Path) -> None:
    assert isinstance(softmax_from(state(Softmax(V, P))), Softmax)
    assert isinstance(softmax_from(state(AdaptiveSoftmax(V, P))), AdaptiveSoftmax)
