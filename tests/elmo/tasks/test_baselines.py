"""Simple baselines: what each answers on data where that can be counted by hand."""

import numpy as np
import pytest

from elmo.tasks.baselines import _fit_linear, score_baselines
from elmo.tasks.examples import Classified, Example, Pair, Question, Tagged
from elmo.tasks.formats.fields import ExampleSet

pytest.importorskip("sklearn")
STRENGTHS = 1.0, 10.0, 100.0, 0.1


def splits(train: list[Example], test: list[Example]) -> dict[str, ExampleSet]:
    return {
        "train": ExampleSet(train, {}),
        "dev": ExampleSet(train, {}),
        "test": ExampleSet(test, {}),
    }


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
    scores = first(score_baselines("classification", splits(train, test), encode))
    assert list(scores) == ["majority", "features", "static"]
    assert scores["majority"] == 0.75  # of equals the first by name
    assert scores["features"] >= 0.75 and scores["static"] >= 0.75  # a text of no tokens: either


def test_pairs_have_the_most_frequent_label_and_features() -> None:
    pairs: list[Example] = [Pair("f", ("a",), ("b",), label) for label in ("yes", "no", "yes")]
    scores = first(score_baselines("pairs", splits(pairs, pairs[:2]), encode))
    assert scores == {"majority": 0.5, "features": 0.5}  # all pairs read alike


def test_tagging_knows_each_words_most_frequent_tag() -> None:
    train: list[Example] = [
        Tagged("f", ("good", "bad", "film"), ("A", "B", "N")),
        Tagged("f", ("film", "good"), ("V", "A")),
        Tagged("f", ("film", "x"), ("V", "A")),
    ]
    test: list[Example] = [Tagged("f", ("film", "good", "new", "bad"), ("V", "A", "A", "A"))]
    scores = first(score_baselines("tagging", splits(train, test), encode))
    assert scores["majority"] == 0.75  # film V, good A, new as most are: A; bad B
    assert set(scores) == {"majority", "features", "static"}


def test_spans_are_scored_as_spans() -> None:
    sentence: Example = Tagged("f", ("good", "bad", "so"), ("B-X", "E-X", "O"))
    scores = score_baselines("tagging", splits([sentence], [sentence]), encode)
    assert scores["majority"].scores()["f1"] == 1.0


def test_kinds_without_a_simple_baseline_have_none() -> None:
    question: Example = Question("f", "1", "q", ("a",), ((0, 1),), ("q",), ("a",), (0, 1))
    assert score_baselines("questions", splits([question], [question]), encode) == {}
    unlabelled: Example = Classified("f", ("good",), None)
    assert score_baselines("classification", splits([unlabelled], [unlabelled]), encode) == {}


def test_dev_chooses_the_strength_of_the_linear_model() -> None:
    """On noise, where each of the four is best at times; of equals the first."""
    from sklearn.linear_model import LogisticRegression

    chosen = set()
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(90, 12)) * np.logspace(-1, 1, 12)
        y = (x[:, 4:8].sum(1) + 4 * np.random.default_rng(99 - seed).normal(size=90) > 0).astype(
            str
        )
        texts = [Classified("f", (str(k),), label) for k, label in enumerate(y)]
        predict = _fit_linear(
            lambda few, x=x: x[[int(e.tokens[0]) for e in few]], texts[:30], texts[30:60]
        )
        x = x / abs(x[:30]).max(0)
        models = [LogisticRegression(C=c, max_iter=200).fit(x[:30], y[:30]) for c in STRENGTHS]
        right = [int((model.predict(x[30:60]) == y[30:60]).sum()) for model in models]
        best = right.index(max(right))
        chosen.add(STRENGTHS[best])
        assert predict(texts) == models[best].predict(x).tolist()
    assert chosen == set(STRENGTHS)


def test_one_label_alone_is_always_answered() -> None:
    one = classified("p good", "p bad")
    assert set(first(score_baselines("classification", splits(one, one), encode)).values()) == {1.0}
