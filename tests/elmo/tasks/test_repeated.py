"""Sentences that come again are embedded once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.model.embedder import Embedder
from elmo.tasks.comparison import evaluate_seeds
from elmo.tasks.examples import Tagged
from elmo.tasks.task import Task
from elmo.tasks.vectors import EmbeddedVectors, build_sentence_store
from tests.elmo.tasks.test_task import labelled, trained


def test_what_is_embedded_has_the_numbers_of_a_store(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    sentences = [("he", "has"), ("a", "gift")]
    store = build_sentence_store(sentences, model=tiny_model_folder, work=tmp_path, layers=None)
    embedded = EmbeddedVectors(Embedder.load(tiny_model_folder), layers=None)(sentences)
    for one, other in zip(embedded, store(sentences), strict=True):
        assert one.dtype == np.float16
        np.testing.assert_array_equal(one, other)


def test_a_sentence_with_two_questions_is_embedded_once(
    tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    embed = Embedder.embed

    def count(self: Embedder, sentences: Any, **options: Any) -> Any:
        given.extend(sentences)
        return embed(self, sentences, **options)

    monkeypatch.setattr(Embedder, "embed", count)
    vectors = EmbeddedVectors(Embedder.load(tiny_model_folder), layers=None)
    first, _, again = vectors([("he", "has"), ("a", "gift"), ("he", "has")])
    np.testing.assert_array_equal(first, again)
    assert given == [("he", "has"), ("a", "gift")]


def test_all_seeds_read_vectors_made_once(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = trained("tagging", tmp_path, tiny_model_folder, count=12, seeds=(0, 1, 2))
    test = labelled("tagging", 12, 2)
    alone = [Task.load(out, seed=seed).evaluate(test) for seed in (0, 1, 2)]
    given: list[int] = []
    read_segments = Embedder.read_segments

    def count(self: Embedder, x_NP: Any, sentences: Any, *rest: Any) -> Any:
        given.append(sum(map(len, sentences)))
        return read_segments(self, x_NP, sentences, *rest)

    monkeypatch.setattr(Embedder, "read_segments", count)
    tallies, _ = evaluate_seeds(out, test)
    assert [tally.scores() for tally in tallies] == alone
    distinct = {e.tokens for e in test.examples if isinstance(e, Tagged)}
    assert sum(given) == sum(map(len, distinct))
