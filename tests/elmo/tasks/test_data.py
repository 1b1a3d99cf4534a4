"""What a task counts, learns and says of data as people have it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.tasks import KINDS, examples, task
from elmo.tasks.examples import Classified, Pair, Predicate, Question, Span, Tagged
from elmo.tasks.inputs import PAD, UNKNOWN, Inputs, WordTable, word_table
from elmo.tasks.layer_probe import probe_layers
from elmo.tasks.readers import read
from elmo.tasks.settings import DEFAULTS, choose
from elmo.tasks.task import Task, evaluate_seeds, read_curve, read_task, unseen_labels
from elmo.tasks.vectors import EmbeddedVectors
from tests.elmo.tasks.test_task import labelled, trained
from tests.elmo.tasks.toys import DIM, LAYERS, word_vectors


@pytest.mark.parametrize("kind", ["pairs", "coreference"])
def test_elmo_is_dropped_once_at_the_input(kind: str) -> None:
    """The model drops half of its whole input; the mix must not be halved before that."""
    settings = choose(kind, {"characters": 4, "words": "none"})
    inputs = Inputs(settings, WordTable([PAD, UNKNOWN], None), layers=LAYERS, dim=DIM).train()
    text = inputs([("cat", "sees")], word_vectors)
    assert DEFAULTS[kind].dropout and (text.x_BTW[..., 4:] != 0).all()


def test_a_word_of_a_file_is_found_by_its_lower_case(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    common = [f"common{k} 0 0" for k in range(50_000)]
    path.write_text("\n".join([*common, "the 1 2", "germany 3 4", "rare 5 6"]) + "\n")
    settings = choose("tagging", {"words": "file", "word_file": str(path), "word_dim": 2})
    table = word_table(settings, [("The",)], [("Germany",), ("rare",)])
    inputs = Inputs(settings, table, layers=LAYERS, dim=DIM)
    found = inputs._words([("The", "Germany", "rare", "RARE")], torch.ones(1, 4, dtype=torch.bool))
    assert found[0, :, :2].tolist() == [[1, 2], [3, 4], [5, 6], [5, 6]]


def test_a_pair_that_hugging_face_labels_minus_one_has_no_label(tmp_path: Path) -> None:
    def pairs(labels: list[Any]) -> tuple[list[str | None], dict[str, int]]:
        lines = [json.dumps({"premise": "a", "hypothesis": "b", "label": one}) for one in labels]
        (tmp_path / "p.jsonl").write_text("\n".join(lines))
        found = read("pairs", tmp_path / "p.jsonl", tokenizer="whitespace")
        return [e.label for e in found.examples if isinstance(e, Pair)], found.counts

    labels, counts = pairs([0, -1, 2, 1, -1])
    assert labels == ["0", "2", "1"] and counts["dropped_without_agreed_label"] == 2
    assert pairs([-1, 1, -1])[0] == ["-1", "1", "-1"]  # two classes of another data set


def squad(path: Path, *questions: tuple[str, str]) -> None:
    asked = [
        {"id": f"q{k}", "question": question, "answers": [{"text": text, "answer_start": 0}]}
        for k, (question, text) in enumerate(questions)
    ]
    paragraph = {"context": "cats sleep all day", "qas": asked}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))


def test_a_question_without_words_counts_as_not_answered(tmp_path: Path) -> None:
    squad(tmp_path / "q.json", ("Who sleeps?", "cats"), ("", "cats"), ("  ", "cats"))
    found = read("questions", tmp_path / "q.json", tokenizer="whitespace")
    assert len(found.examples) == found.counts["questions"] == 3
    assert found.counts["without_words"] == 2
    out = trained("questions", tmp_path, None, count=12, changes={"epochs": 1, "elmo": "none"})
    loaded = Task.load(out)
    predicted = [guess for _, guess in loaded.predict(found.examples)]
    assert predicted[1:] == [(0, 0), (0, 0)]
    described = loaded.describe(found.examples[1], predicted[1])
    assert described == {"id": "q1", "answer": "", "answer_start": None}
    assert loaded.evaluate(found)["f1"] <= 1 / 3
    unlabelled = read("questions", tmp_path / "q.json", tokenizer="whitespace", labelled=False)
    assert len(list(loaded.predict(unlabelled.examples))) == 3


def test_a_predicate_with_nested_arguments_is_scored(tmp_path: Path) -> None:
    rows = [
        ("cats", "-", "(A0(A1*)", "*"),
        ("that", "-", "*)", "(A0*)"),
        ("sleep", "sleep.01", "(V*)", "*"),
        ("purr", "purr.01", "*", "(V*)"),
    ]
    lines = [
        "\t".join([str(k), word, "X", "*", word, sense, *brackets])
        for k, (word, sense, *brackets) in enumerate(rows, 1)
    ]
    (tmp_path / "r.props").write_text("\n".join(lines) + "\n")
    found = read("roles", tmp_path / "r.props")
    first, second = found.examples
    assert isinstance(first, Predicate) and isinstance(second, Predicate)
    assert first.tags is None and first.nested == (
        Span(0, 1, "A1"),
        Span(0, 2, "A0"),
        Span(2, 3, "V"),
    )
    assert second.tags is not None and found.counts["with_nested_arguments"] == 1
    assert [examples.learnable(one) for one in found.examples] == [False, True]
    out = trained("roles", tmp_path, None, count=8, changes={"epochs": 1, "elmo": "none"})
    model = Task.load(out).model
    right = [["B-A0", "I-A0", "B-V", "O"], list(second.tags)]
    scores = model.score(found.examples, right)
    assert scores["precision"] == 1.0 and scores["recall"] == pytest.approx(2 / 3)
    unlabelled = read("roles", tmp_path / "r.props", labelled=False)
    assert [e.predicate for e in unlabelled.examples if isinstance(e, Predicate)] == [2, 3]


def test_roles_are_predicted_for_columns_without_brackets(tmp_path: Path) -> None:
    lines = ["1\tcats\tN\t*\tcat\t-", "2\tsleep\tV\t*\tsleep\tsleep.01"]
    (tmp_path / "r.props").write_text("\n".join(lines) + "\n")
    (only,) = read("roles", tmp_path / "r.props", labelled=False).examples
    assert isinstance(only, Predicate) and only.predicate == 1 and only.tags is None
    with pytest.raises(ElmoError, match="1 predicates and 0 columns of arguments"):
        read("roles", tmp_path / "r.props")


def test_the_seed_that_is_best_on_dev_is_loaded(tmp_path: Path) -> None:
    out = trained("tagging", tmp_path, None, count=20, seeds=(0, 1, 2), changes={"elmo": "none"})
    record = read_task(out)
    best = max(record.seeds, key=lambda seed: record.scores[str(seed)]["f1"])
    weights = {seed: Task.load(out, seed=seed).model.state_dict() for seed in record.seeds}  # type: ignore[attr-defined]
    chosen = Task.load(out).model.state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(chosen[name], weights[best][name]) for name in chosen)


def test_labels_that_the_training_text_lacks_are_named(tmp_path: Path) -> None:
    out = trained("classification", tmp_path, None, count=8, changes={"elmo": "none"})
    record = read_task(out)
    others = [Classified("f:1", ("a",), "maybe"), Classified("f:2", ("a",), record.labels[0])]
    assert unseen_labels(record, others) == ["maybe"]


def test_the_rate_of_an_epoch_is_the_one_it_had(tmp_path: Path) -> None:
    changes = {"elmo": "none", "halve_after": 1, "epochs": 6, "patience": 6, "lr": 0.5}
    out = trained("pairs", tmp_path, None, count=12, changes=changes)
    rates = [epoch["lr"] for epoch in read_curve(out, 0)]
    scores = [epoch["accuracy"] for epoch in read_curve(out, 0)]
    lr, best = 0.5, 0.0
    for rate, score in zip(rates, scores, strict=True):
        assert rate == lr
        if score > best or score == best == 0:
            best = score
        else:
            lr /= 2


def test_a_curve_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "curve.jsonl").write_bytes(b'{"epoch\xff": 1}\n')
    with pytest.raises(ElmoError, match=r"curve.jsonl: not readable .*; train again"):
        read_curve(tmp_path, 0)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_task_whose_labels_are_missing_is_refused(kind: str, tmp_path: Path) -> None:
    out = trained(kind, tmp_path, None, count=8, changes={"elmo": "none", "epochs": 1})
    record = json.loads((out / "task.json").read_text())
    record["labels"] = [] if record["labels"] else ["one"]
    record["digest"] = task.identity(record)
    (out / "task.json").write_text(json.dumps(record))
    with pytest.raises(ElmoError, match="no task that this version knows"):
        Task.load(out)


def test_a_probe_of_one_token(tiny_model_folder: Path) -> None:
    one = [(["gift"], ["N"])]
    assert probe_layers(Embedder.load(tiny_model_folder), one, one).layers == [1.0] * 3


@pytest.mark.parametrize("kind", ["questions", "pairs", "classification"])
def test_a_text_too_long_to_be_compared_with_itself_is_one_line(kind: str, tmp_path: Path) -> None:
    out = trained(kind, tmp_path, None, count=8, changes={"elmo": "none", "epochs": 1})
    (example, *_) = labelled(kind, 1).examples
    long = ("a",) * 5000
    changes: dict[str, Any] = {"source": "data.txt:7"}
    if isinstance(example, Question):
        changes |= {"tokens": long, "offsets": ((0, 1),) * 5000}
    elif isinstance(example, Pair):
        changes["hypothesis"] = long
    else:
        changes["tokens"] = long
    with pytest.raises(ElmoError, match=r"^data.txt:7: has 5,000 tokens, .* at most 4,096 are"):
        list(Task.load(out).predict([replace(example, **changes)]))


class Counting:
    """An embedder that counts the tokens it was given."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.tokens = embedder, 0

    def embed(self, sentences: Any, **options: Any) -> Any:
        self.tokens += sum(map(len, sentences))
        return self.embedder.embed(sentences, **options)


def test_a_repeated_sentence_is_embedded_once(tiny_model_folder: Path) -> None:
    counting = Counting(Embedder.load(tiny_model_folder))
    vectors = EmbeddedVectors(counting, layers=None)  # type: ignore[arg-type]
    sentences = [("he", "has"), ("a", "gift"), ("he", "has")]
    first = vectors(sentences)
    again = vectors(sentences[::-1])[::-1]
    assert counting.tokens == 4
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)


def test_all_seeds_read_vectors_made_once(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = trained("tagging", tmp_path, tiny_model_folder, count=12, seeds=(0, 1, 2))
    test = labelled("tagging", 12, 2)
    alone = [Task.load(out, seed=seed).evaluate(test) for seed in (0, 1, 2)]
    given: list[int] = []
    embed = Embedder.embed

    def count(self: Embedder, sentences: Any, *rest: Any, **options: Any) -> Any:
        given.append(sum(map(len, sentences)))
        return embed(self, sentences, *rest, **options)

    monkeypatch.setattr(Embedder, "embed", count)
    assert evaluate_seeds(out, test) == alone
    distinct = {e.tokens for e in test.examples if isinstance(e, Tagged)}
    assert sum(given) == sum(map(len, distinct))
