"""Ordinary features: the model is scikit-learn's, and it answers where dev gains by it."""

import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from elmo.data.arrays import Floats
from elmo.io.atomic import write_json
from elmo.io.records import read_json
from elmo.model.folder import load_model
from elmo.tasks import features
from elmo.tasks.examples import Classified, Pair, Tagged, Tokens
from elmo.tasks.features import (
    LinearModels,
    ModelShares,
    describe_shape,
    tagging_features,
    words_and_pairs,
)
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import KINDS_WITH_FEATURES, task_settings
from elmo.tasks.metrics import tally_accuracy
from elmo.tasks.record import record_digest
from elmo.tasks.task import Task
from elmo.tasks.train import add_linear_models, predict_all
from elmo.tasks.vectors import SoftmaxVectors
from tests.elmo.conftest import save
from tests.elmo.tasks.test_task import labelled, taught
from tests.elmo.tasks.toys import examples, word_vectors
from tests.files import contents

ROWS = 1 << 17  # so many that hardly two features of a test share one


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_the_model_is_that_of_scikit_learn(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    text = pytest.importorskip("sklearn.feature_extraction.text")
    monkeypatch.setattr(features, "TOKEN_PRIORS", ((0.5,), (1.0,)))
    monkeypatch.setattr(features, "TEXT_PRIORS", ((0.5,), (1.0,)))
    train, unseen = examples(kind, 20), examples(kind, 10, seed=1)
    if kind == "tagging":
        counts = text.CountVectorizer(analyzer=list, binary=True)
        items = [
            [item for e in part for item in tagging_features(e.tokens)] for part in (train, unseen)
        ]
        gold = [tag for e in train for tag in e.tags]
    else:
        counts = text.TfidfVectorizer(analyzer=words_and_pairs, sublinear_tf=True)
        items = [[e.tokens for e in part] for part in (train, unseen)]
        gold = [e.label for e in train]
    # Of two labels scikit-learn has one vector of weights, the difference of our two.
    strength = 2.0 * (2 if len(set(gold)) == 2 else 1)
    logistic = linear_model.LogisticRegression(C=strength, max_iter=1000, tol=1e-6)
    logistic.fit(counts.fit_transform(items[0]), gold)
    ours = LinearModels(ROWS, len(logistic.classes_))
    ours.fit(train, logistic.classes_.tolist())
    expected = logistic.predict_log_proba(counts.transform(items[1]))
    np.testing.assert_allclose(ours(unseen).numpy(), expected, atol=5e-3)


def test_the_model_of_vectors_is_that_of_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    train, unseen = examples("tagging", 20), examples("tagging", 10, seed=1)
    scale = preprocessing.StandardScaler().fit(_tokens_of(train))
    gold = [tag for e in train for tag in e.tags]
    logistic = linear_model.LogisticRegression(C=1 / features.TOKEN_PRIORS[1][0], tol=1e-6)
    logistic.fit(scale.transform(_tokens_of(train)), gold)
    ours = LinearModels(64, len(logistic.classes_), shares=ModelShares(0, 0, 1))
    ours.fit(train, logistic.classes_.tolist(), _layers_of)
    expected = logistic.predict_log_proba(scale.transform(_tokens_of(unseen)))
    np.testing.assert_allclose(ours(unseen, _layers_of).numpy(), expected, atol=5e-3)


def test_of_too_many_labels_the_frequent_features_are_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """10,000 labels took 13.6 GB."""
    monkeypatch.setattr(features, "MAX_WEIGHTS", 3 * 3)
    model = LinearModels(ROWS, 3)
    model.fit([Classified("", ("a", "b", f"x{k}"), f"{k}") for k in range(3)], ["0", "1", "2"])
    frequent = sorted(zlib.crc32(feature.encode()) % ROWS for feature in ("a", "b", "a b"))
    assert model.hash_U.tolist() == frequent and len(model.weights_UK) == 3


@pytest.mark.parametrize(
    ("kind", "shares", "scores", "total"),
    [
        (
            "tagging",
            [1.0, 1.0, 1.0],  # tokens are not cross-validated
            [[-9.228, -11.606, 0.600, -8.737], [-3.549, -9.924, -6.042, 0.592]],
            -719.563,
        ),
        (
            "classification",
            [1.0582, 0.9589, 0.9651],
            [[0.0411, -4.4574], [-0.0226, -2.0869]],
            -14.396,
        ),
        ("pairs", [0.8301, 0.8359, 0.9452], [[0.3376, -2.0668], [-1.2140, -0.2609]], -8.393),
    ],
)
def test_constants_and_sums_are_those_that_were_measured(
    kind: str, shares: list[float], scores: list[list[float]], total: float
) -> None:
    """The numbers of 28 November 2026. A constant 1 % off moves one of them by more than 0.003.

    The models of tokens, not the others, differ by 0.1 % between processors.
    """
    tolerance = 5 if kind == "tagging" else 1
    train, unseen = examples(kind, 40), examples(kind, 4, seed=1)
    labels = sorted({x for e in train for x in (e.tags if kind == "tagging" else [e.label])})
    static = lambda sentences: [layers[:1, :, :6] for layers in word_vectors(sentences)]  # noqa: E731
    model = LinearModels(ROWS, len(labels), shares=ModelShares(0.5, 1.0, 0.7, 0.4), static=static)
    model.fit(train, labels, word_vectors, torch.linspace(1, 2, len(labels)))
    assert model.model_weights == pytest.approx(shares, abs=2e-3)
    found = model(unseen, word_vectors)
    np.testing.assert_allclose(found[:2], scores, atol=3e-3 * tolerance)
    assert float(found.sum()) == pytest.approx(total, abs=0.02 * tolerance)


def test_labels_that_count_again_are_taken_off() -> None:
    """Of four examples three are a: with half an example added to each label, 0.7. Its logarithm is
    in each model; three quarters of what is there more than once go."""
    train = [Classified("f", (word,), label) for word, label in zip("abcd", "aaab", strict=True)]
    model = LinearModels(ROWS, 2)
    for weights, frequency in ((None, [0.7, 0.3]), (torch.tensor([1.0, 3.0]), [3.5 / 8, 4.5 / 8])):
        model.fit(train, ["a", "b"], word_vectors, weights)
        expected = torch.zeros(4, 2)
        for shares in (ModelShares(0, 1, 0), ModelShares(0, 0, 0.5)):
            model.shares = shares
            taken = 0.75 * (sum(shares) - 1) * torch.tensor(frequency).log()
            expected += model(train, word_vectors) + taken
        model.shares = ModelShares(2, 1, 0.5)
        expected -= 0.75 * 2.5 * torch.tensor(frequency).log()
        torch.testing.assert_close(model(train, word_vectors), expected)


def test_few_or_large_texts_are_not_cross_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text cannot be held out, and of vectors that do not fit some texts have no answers."""
    train = examples("classification", 20)
    labels = sorted({e.label for e in train})
    for few in (train[:1], train[:4]):
        model = LinearModels(ROWS, len(labels))
        model.fit(few, labels, _layers_of)
        assert model.model_weights == [1.0, 1.0, 1.0] and model(train, _layers_of).isfinite().all()
    monkeypatch.setattr(features, "MAX_VECTOR_VALUES", 12 * len(train) // 2)
    model.fit(train, labels, _layers_of)
    assert model.model_weights[0] != 1.0 and model.model_weights[1] == 1.0


def test_vectors_of_many_tokens_are_learned_from_sentences_spread_evenly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train = examples("tagging", 20)
    labels = sorted({tag for e in train for tag in e.tags})
    first, second = (LinearModels(64, len(labels), shares=ModelShares(0, 0, 1)) for _ in range(2))
    tokens = sum(len(e.tokens) for e in train)
    monkeypatch.setattr(features, "MAX_VECTOR_VALUES", tokens * 6)  # of twelve
    first.fit(train, labels, _layers_of)
    monkeypatch.setattr(features, "MAX_VECTOR_VALUES", tokens * 12)
    second.fit(train[::3], labels, _layers_of)
    assert torch.equal(first(train, _layers_of), second(train, _layers_of))


def _layers_of(sentences: Sequence[Tokens]) -> list[Floats]:
    """Three layers of four numbers, by the token alone."""
    return [
        np.array(
            [[[zlib.crc32(f"{k} {token}".encode()) % 97 for k in range(4)] for token in s]] * 3
        )
        * np.array([1.0, -1.0, 0.5], np.float32)[:, None, None]
        for s in sentences
    ]


def _tokens_of(sentences: Sequence[Tagged]) -> Floats:
    return np.concatenate(
        [np.hstack(layers) for layers in _layers_of([s.tokens for s in sentences])]
    )


def test_shapes_of_words() -> None:
    words = ["Anna", "McX", "B-52s", "2026", "서울", ""]
    assert [describe_shape(word) for word in words] == ["Xx", "XxX", "X-dx", "d", "x", ""]


@pytest.mark.parametrize("kind", KINDS_WITH_FEATURES)
def test_what_the_network_does_not_learn_the_features_do(kind: str, tmp_path: Path) -> None:
    """The network's rate is 0. What dev chose is kept: the loaded task answers as it did."""
    changes = {"lr": 0.0, "features": ROWS}
    learned, dev = labelled(kind, 100), labelled(kind, 30, 1)
    first = taught(kind, learned, dev, tmp_path / "a", changes=changes)
    task = Task.load(first)
    linear = task.record.linear["0"]
    metric = "f1" if kind == "tagging" else "accuracy"
    score = task.record.scores["0"][metric]
    assert (
        score > linear.network_score and linear.features > 0 and linear.vectors == linear.width == 0
    )
    assert task.evaluate(dev)[metric] == pytest.approx(score, abs=1e-6)
    one_by_one = predict_all(task.model, dev.examples, None, 1)
    assert predict_all(task.model, dev.examples, None, 7) == one_by_one
    second = taught(kind, learned, dev, tmp_path / "b", changes=changes)
    assert contents(second) == contents(first)


@pytest.mark.parametrize(("right", "is_better"), [(range(20, 75), False), (range(5, 100), True)])
def test_another_share_is_chosen_where_dev_gains_by_it_beyond_chance(
    monkeypatch: pytest.MonkeyPatch, right: range, is_better: bool
) -> None:
    """Of a hundred texts the first choice answers fifty."""
    linear, alone = LinearModels(8, 2), ModelShares(0.0, 1.0, 0.0)
    guess = lambda *_: [k in (right if linear.shares == alone else range(50)) for k in range(100)]  # noqa: E731
    monkeypatch.setattr("elmo.tasks.train.predict_all", guess)
    model: Any = SimpleNamespace(tally=lambda _, guesses: tally_accuracy([True] * 100, guesses))
    settings = task_settings("classification", {})
    scores, shares, _ = add_linear_models(model, linear, [], vectors=None, settings=settings)
    assert shares == linear.shares == (alone if is_better else ModelShares(0.5, 1.0, 0.0))
    assert scores["accuracy"] == (0.95 if is_better else 0.5)


def test_features_that_dev_does_not_want_are_left_out(tmp_path: Path) -> None:
    """The labels of training are those of dev turned round; the network answers one label."""
    turned = {"yes": "no", "no": "yes"}
    train = [
        Classified("f", ("so", word), turned[label])
        for word, label in [("good", "yes"), ("bad", "no")] * 6
    ] + [Classified("f", ("the",), "yes")]
    dev = [
        Classified("f", ("so", word), label) for word, label in [("good", "yes"), ("bad", "no")] * 9
    ]
    data = ExampleSet(train, {}), ExampleSet(dev, {})
    out = taught("classification", *data, tmp_path, changes={"lr": 0.0})
    task = Task.load(out)
    assert task.record.linear["0"].features == 0
    assert task.model.linear is None
    assert "weights_UK" not in (out / "seed-0" / "weights.safetensors").read_bytes().decode(
        "latin1"
    )


def test_a_task_from_before_there_were_features_loads(tmp_path: Path) -> None:
    out = taught(
        "tagging",
        labelled("tagging", 20),
        labelled("tagging", 8),
        tmp_path,
        changes={"features": 0},
    )
    before = list(Task.load(out)([["ann", "so", "bob"]]))
    record = read_json(out / "task.json")
    del record["linear"], record["settings"]["features"]
    record["digest"] = record_digest(record)
    write_json(out / "task.json", record)
    assert Task.load(out)([["ann", "so", "bob"]]) == before


def test_static_vectors_are_the_rows_of_the_softmax(tiny_model_folder: Path) -> None:
    """Of the words before, at and after a token; its lower case if the word is unknown, or 0."""
    model = load_model(tiny_model_folder)
    assert model.softmax is not None
    rows = model.softmax["weight"].numpy()
    rows = dict(zip(model.vocabulary.words, rows - rows.mean(0), strict=True))
    one, two = [word for word in model.vocabulary.words if word.islower()][:2]
    none = np.zeros_like(rows[one])
    read = SoftmaxVectors(tiny_model_folder, window=1)
    first, second = read([(one, two.upper()), ("nowhere",)])
    expected = [np.hstack([none, rows[one], rows[two]]), np.hstack([rows[one], rows[two], none])]
    np.testing.assert_allclose(first, [expected], atol=1e-6)
    assert second.shape == (1, 1, 3 * len(none)) and not second.any()


@pytest.mark.parametrize("kind", KINDS_WITH_FEATURES)
def test_static_vectors_answer_with_the_rest(
    kind: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    """Loaded, the task answers as when it was trained. A model that has dropped its softmax, as a
    package may, goes without static vectors, and so does a task of an earlier version."""
    save(tmp_path / "bare", load_model(tiny_model_folder), softmax=None)
    changes = {"lr": 0.0, "features": ROWS, "elmo": "frozen"}
    learned, dev = labelled(kind, 60), labelled(kind, 30, 1)
    metric = "f1" if kind == "tagging" else "accuracy"
    widths = []
    for folder in (tiny_model_folder, tmp_path / "bare"):
        place = tmp_path / f"of-{folder.name}"
        task = Task.load(taught(kind, learned, dev, place, folder, changes=changes))
        linear = task.record.linear["0"]
        assert (linear.static > 0) == (linear.static_width > 0)
        assert task.evaluate(dev)[metric] == pytest.approx(
            task.record.scores["0"][metric], abs=1e-6
        )
        widths.append(linear.static_width)
    assert widths[0] > 0 == widths[1]
    out = tmp_path / "of-bare" / "task"
    record = read_json(out / "task.json")
    del record["linear"]["0"]["static"], record["linear"]["0"]["static_width"]
    record["digest"] = record_digest(record)
    before = [guess for _, guess in task.predict(dev.examples)]
    write_json(out / "task.json", record)
    assert [guess for _, guess in Task.load(out).predict(dev.examples)] == before


def test_texts_without_words_and_labels_that_training_lacks() -> None:
    model = LinearModels(64, 2)
    train = [Classified("f", ("good",), "a"), Classified("f", ("bad",), "b")]
    model.fit(train, ["a", "b"])
    empty = [Classified("f", (), None), Classified("f", ("new",), None)]
    assert torch.isfinite(model(empty)).all()
    assert model.predict([], ["a", "b"]) == []
    assert model.predict([Tagged("f", (), None)], ["a", "b"]) == [[]]
    assert LinearModels(64, 2)([Pair("f", (), (), None)]).shape == (1, 2)
    model.fit(train, ["a", "b"], _layers_of)
    assert torch.isfinite(model(empty, _layers_of)).all()
    pair = [Pair("f", ("a",), (), "a"), Pair("f", ("a",), ("b",), "b")]
    model.fit(pair, ["a", "b"], _layers_of)
    assert model.predict(pair, ["a", "b"], _layers_of) == ["a", "b"]
