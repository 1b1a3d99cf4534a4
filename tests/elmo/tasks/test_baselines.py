"""Simple baselines: what each answers on data where that can be counted by hand."""

import numpy as np

from elmo.tasks.baselines import score_baselines
from elmo.tasks.examples import Classified, Example, Pair, Question, Tagged
from elmo.tasks.formats.fields import ExampleSet


def splits(train: list[Example], test: list[Example]) -> tuple[ExampleSet, ExampleSet]:
    return ExampleSet(train, {}), ExampleSet(test, {})


def encode(words: list[str]) -> np.ndarray:
    """A vector for each word: good, bad, anything else."""
    return np.array([[w == "good", w == "bad", 1] for w in words], np.float32)


def classified(*texts: str) -> list[Example]:
    return [Classified("f", tuple(text.split()[1:]), text.split()[0]) for text in texts]


def first(figures: dict) -> dict[str, float]:
    return {name: next(iter(tally.scores().values())) for name, tally in figures.items()}


def test_classification() -> None:
    train = classified("p a good film", "p good", "p so good", "n a bad film", "n bad", "n so bad")
    test = classified("n bad so bad", "p good indeed", "n bad", "n")
    scores = first(score_baselines("classification", *splits(train, test), encode))
    assert list(scores) == ["majority", "features", "static"]
    assert scores["majority"] == 0.75  # of equals the first by name
    assert scores["features"] >= 0.75 and scores["static"] >= 0.75  # a text of no tokens: either


def test_pairs_have_the_most_frequent_label_and_features() -> None:
    pairs: list[Example] = [Pair("f", ("a",), ("b",), label) for label in ("yes", "no", "yes")]
    scores = first(score_baselines("pairs", *splits(pairs, pairs[:2]), encode))
    assert scores == {"majority": 0.5, "features": 0.5}  # all pairs read alike


def test_tagging_knows_each_words_most_frequent_tag() -> None:
    train: list[Example] = [
        Tagged("f", ("good", "bad", "film"), ("A", "B", "N")),
        Tagged("f", ("film", "good"), ("V", "A")),
        Tagged("f", ("film", "x"), ("V", "A")),
    ]
    test: list[Example] = [Tagged("f", ("film", "good", "new", "bad"), ("V", "A", "A", "A"))]
    scores = first(score_baselines("tagging", *splits(train, test), encode))
    assert scores["majority"] == 0.75  # film V, good A, new as most are: A; bad B
    assert set(scores) == {"majority", "features", "static"}


def test_spans_are_scored_as_spans() -> None:
    sentence: Example = Tagged("f", ("good", "bad", "so"), ("B-X", "E-X", "O"))
    scores = score_baselines("tagging", *splits([sentence], [sentence]), encode)
    assert scores["majority"].scores()["f1"] == 1.0


def test_kinds_without_a_simple_baseline_have_none() -> None:
    question: Example = Question("f", "1", "q", ("a",), ((0, 1),), ("q",), ("a",), (0, 1))
    assert score_baselines("questions", *splits([question], [question]), encode) == {}
    unlabelled: Example = Classified("f", ("good",), None)
    assert score_baselines("classification", *splits([unlabelled], [unlabelled]), encode) == {}


def test_one_label_alone_is_always_answered() -> None:
    one = classified("p good", "p bad")
    assert set(first(score_baselines("classification", *splits(one, one), encode)).values()) == {
        1.0
    }
