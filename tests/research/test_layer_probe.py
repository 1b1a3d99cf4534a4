"""Probes learn what a layer holds and no more."""

import random

import pytest

from elmo.model.embedder import Embedder
from elmo.model.folder import Model
from research.layer_probe import probe_layers

WORDS = ["the", "a", "gift", "for", "has", "he", "zoo", "übel"]


def text(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [[draw.choice(WORDS) for _ in range(6)] for _ in range(count)]


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
