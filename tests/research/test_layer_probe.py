"""Probes learn what a layer holds and no more."""

import random

import numpy as np
import pytest

from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from research.layer_probe import probe_layers

WORDS = ["the", "a", "gift", "for", "has", "he", "zoo", "übel"]


def text(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice(WORDS) for _ in range(6)] for _ in range(count)]


def test_a_tag_of_the_type_is_in_layer_0_and_in_the_most_frequent_tag(tiny_model: Model) -> None:
    tagged = [(s, [str(WORDS.index(t) % 3) for t in s]) for s in text(60, 1)]
    scores = probe_layers(Embedder(tiny_model), tagged[:40], tagged[40:])
    assert scores.most_frequent == 1.0 and scores.layers[0] == 1.0
    assert scores.tokens == 120 and scores.tags == 3
    np.testing.assert_allclose(scores.is_right.mean(1), scores.layers)


def test_a_tag_of_the_context_is_in_the_layers_above_alone(tiny_model: Model) -> None:
    """Whether a token is the first of its sentence: the type says nothing of it."""
    tagged = [(s, ["yes" if k == 0 else "no" for k in range(len(s))]) for s in text(700, 2)]
    scores = probe_layers(Embedder(tiny_model), tagged[:600], tagged[600:])
    assert scores.layers[0] == pytest.approx(scores.most_frequent, abs=0.05)
    assert scores.layers[1] > scores.layers[0] + 0.03


def test_shuffled_tags_are_not_learned(tiny_model: Model) -> None:
    draw = random.Random(4)
    tagged = [(s, [draw.choice("ab") for _ in s]) for s in text(120, 3)]
    scores = probe_layers(Embedder(tiny_model), tagged[:60], tagged[60:], l2=1e-3)
    assert all(abs(score - 0.5) < 0.12 for score in scores.layers)
