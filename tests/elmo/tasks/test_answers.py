"""The scores of answers, scores by label, weights of classes, and the columns that a task keeps."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from elmo.tasks.comparison import evaluate_seeds
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Classified, Predicate, Span, Tagged
from elmo.tasks.kinds import KINDS
from elmo.tasks.label_scores import label_scores
from elmo.tasks.modules import tag_probabilities, viterbi_decode
from elmo.tasks.questions import best_spans
from elmo.tasks.task import Task
from tests.elmo.tasks.test_derivations import random_network
from tests.elmo.tasks.test_task import network, settings_of, taught
from tests.elmo.tasks.toys import examples, word_vectors


def test_the_probabilities_of_tags_and_the_best_ones_are_those_of_all_paths() -> None:
    torch.manual_seed(0)
    K, lengths = 3, (4, 2, 1)
    scores, moves, start, end = (torch.randn(*s) for s in ((3, 4, K), (K, K), (K,), (K,)))
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    found = tag_probabilities(scores, mask, moves, start, end)
    best = viterbi_decode(scores, mask, moves, start, end)
    for row, length in enumerate(lengths):
        expected, weights = torch.zeros(length, K), dict[tuple[int, ...], float]()
        for path in itertools.product(range(K), repeat=length):
            total = (
                start[path[0]]
                + end[path[-1]]
                + sum(moves[a, b] for a, b in itertools.pairwise(path))
            )
            weight = torch.exp(total + sum(scores[row, t, k] for t, k in enumerate(path)))
            weights[path] = float(weight)
            for t, k in enumerate(path):
                expected[t, k] += weight
        assert tuple(best[row]) == max(weights, key=weights.__getitem__)
        expected /= expected.sum(1, keepdim=True)
        torch.testing.assert_close(found[row, :length], expected)


def test_the_score_of_an_answer_is_its_share_of_all_spans() -> None:
    torch.manual_seed(0)
    start, end = torch.randn(2, 5), torch.randn(2, 5)
    for row, ((first, stop), score) in enumerate(best_spans(start, end, 3)):
        spans = [(a, b) for a in range(5) for b in range(a + 1, min(5, a + 3) + 1)]
        weights = {(a, b): float((start[row, a] + end[row, b - 1]).exp()) for a, b in spans}
        assert weights[first, stop] == max(weights.values())
        assert score == pytest.approx(weights[first, stop] / sum(weights.values()), rel=1e-5)


SCORES: dict[str, Callable[[dict[str, Any]], list[float]]] = {
    "tagging": lambda answer: answer["scores"] + [span["score"] for span in answer["spans"]],
    "classification": lambda answer: [answer["score"], *answer["scores"].values()],
    "pairs": lambda answer: [answer["score"], *answer["scores"].values()],
    "questions": lambda answer: [answer["score"]],
    "roles": lambda answer: [span["score"] for span in answer["arguments"]],
    "coreference": lambda answer: answer["scores"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_has_a_score(kind: str) -> None:
    found: list[float] = []
    for number in range(4):
        model, given = random_network(kind, number)
        answers = model.answer(given, word_vectors)
        for example, (prediction, scores) in zip(given, answers, strict=True):
            assert model.predict([example], word_vectors) == [prediction]
            described = model.describe(example, prediction, scores)
            found += SCORES[kind](json.loads(json.dumps(described)))
    assert all(0 <= score <= 1 for score in found)
    assert len(set(found)) > 3


def test_a_cluster_is_as_sure_as_its_weakest_link() -> None:
    model, given = random_network("coreference", 0)
    spans = [(0, 1), (1, 2), (2, 3)]
    scores = torch.tensor([[1.0, 0.0], [0.1, 0.9], [0.4, 0.6]]).log()
    model._score_antecedents = lambda *_: (spans, scores, torch.tensor([[-1], [0], [1]]))
    ((clusters, (score,)),) = model.answer(given[:1], word_vectors)
    assert clusters == [spans] and score == pytest.approx(0.6)


def test_arguments_begin_before_they_go_on() -> None:
    for number in range(12):
        model, given = random_network("roles", number)
        for tags, _ in model.answer(given, word_vectors):
            for before, tag in itertools.pairwise(["O", *tags]):
                assert tag[0] != "I" or before[1:] == tag[1:]


def test_scores_by_label_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draw = np.random.default_rng(0)
    gold, guess = (draw.choice(["a", "b", "c"], 60, p=[0.7, 0.2, 0.1]).tolist() for _ in range(2))
    answers: Any = [
        (Classified("", ("x",), one), (other, [0.5, 0.3, 0.2]))
        for one, other in zip(gold, guess, strict=True)
    ]
    report = label_scores(answers, marks_spans=False)
    expected = metrics.classification_report(gold, guess, output_dict=True, zero_division=0)
    for label in "abc":
        for ours, theirs in (
            ("precision",) * 2,
            ("recall",) * 2,
            ("f1", "f1-score"),
            ("support",) * 2,
        ):
            assert report["labels"][label][ours] == pytest.approx(expected[label][theirs])
    assert report["macro"]["f1"] == pytest.approx(expected["macro avg"]["f1-score"])
    assert report["micro"]["f1"] == pytest.approx(expected["accuracy"])
    table = metrics.confusion_matrix(gold, guess, labels=["a", "b", "c"])
    for one, row in zip("abc", table.tolist(), strict=True):
        assert [report["confusion"][one].get(other, 0) for other in "abc"] == row
    right = np.mean(np.array(gold) == np.array(guess))
    assert report["calibration"]["accuracy"] == pytest.approx(right)
    assert report["calibration"]["error"] == pytest.approx(abs(0.5 - right))  # all in one bin


def test_scores_by_label_count_spans_tags_and_arguments() -> None:
    tagged = Tagged("", ("a", "b", "c"), ("B-X", "E-X", "S-Y"))
    answer = (tagged, (["B-X", "E-X", "S-X"], None))
    spans = label_scores([answer], marks_spans=True)
    assert {k: v["support"] for k, v in spans["labels"].items()} == {"X": 1, "Y": 1}
    assert spans["labels"]["X"]["precision"] == 0.5 and spans["micro"]["recall"] == 0.5
    assert "confusion" not in spans and "calibration" not in spans
    tags = label_scores([answer], marks_spans=False)
    assert tags["confusion"]["S-Y"] == {"S-X": 1}
    role = Predicate("", ("a", "b", "c"), 1, ("B-A0", "B-V", "B-C-A0"))
    roles = label_scores([(role, (["B-A0", "B-V", "B-C-A0"], None))], marks_spans=True)
    assert roles["labels"] == {"A0": {"f1": 1.0, "precision": 1.0, "recall": 1.0, "support": 1}}
    nested = replace(role, tags=None, nested=(Span(0, 1, "A0"), Span(2, 3, "A1")))
    found = label_scores([(nested, (["B-A0", "B-V", "O"], None))], marks_spans=True)
    assert {label: scores["support"] for label, scores in found["labels"].items()} == {
        "A0": 1,
        "A1": 1,
    }
    many = [(Classified("", ("x",), f"{k:02}"), (f"{k:02}", [1.0])) for k in range(13)]
    assert "confusion" in label_scores(many[:12], marks_spans=False)
    assert "confusion" not in label_scores(many, marks_spans=False)
    sure = label_scores([(Classified("", ("x",), "a"), ("b", [0.0, 1.0]))], marks_spans=False)
    assert sure["labels"].keys() == {"a", "b"} and sure["calibration"]["error"] == 1.0
    assert (
        label_scores([(e, (((0, 1)), 0.5)) for e in examples("questions", 2)], marks_spans=False)
        == {}
    )


@pytest.mark.parametrize("kind", ["classification", "pairs"])
def test_classes_weigh_alike_where_that_is_asked_for(kind: str) -> None:
    given = [one for one in examples(kind, 30) if one.label == "no"][:9]  # type: ignore[union-attr]
    given += [one for one in examples(kind, 30) if one.label == "yes"][:3]  # type: ignore[union-attr]
    model: Any = network(kind, settings_of(kind, elmo_output=False), given)
    model.eval()
    plain = nn.functional.cross_entropy
    scores = model.scores(given, word_vectors)
    numbers = torch.tensor([0] * 9 + [1] * 3)
    torch.testing.assert_close(model.loss(given, word_vectors), plain(scores, numbers))
    model.balance_classes(given)
    means = plain(scores[:9], numbers[:9]), plain(scores[9:], numbers[9:])
    torch.testing.assert_close(model.loss(given, word_vectors), sum(means) / 2)


def test_a_task_remembers_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars\ngood film,5\nbad film,1\nso good,5\nso bad,1\n")
    columns = {"text": "review", "label": "stars"}
    data = read_examples("classification", path, columns=columns, tokenizer="whitespace")
    changes = {"epochs": 2, "class_weights": "balanced"}
    out = taught("classification", data, data, tmp_path, changes=changes, seeds=(0, 1))
    task = Task.load(out)
    assert task.record.columns == columns
    task.record.tokenizer = type(task.record.tokenizer)("whitespace")
    by_column, by_field = task([{"review": "good film", "id": 3}, {"text": "good film"}])
    assert by_column == by_field and set(by_field["scores"]) == {"1", "5"}
    tallies, report = evaluate_seeds(out, data)
    assert len(tallies) == 2 and report["labels"]["5"]["support"] == 4  # of both seeds
