"""A trained task is called with what people have: texts, tokens and records in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Tagged
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import task_settings
from elmo.tasks.task import Task, train_task
from tests.elmo.tasks.test_task import trained

ITEMS: dict[str, Any] = {
    "tagging": "He has,  a gift",
    "classification": "He has a gift",
    "pairs": {"premise": "He has a gift", "hypothesis": ["He", "has", "nothing"]},
    "questions": {"context": "He has a gift.", "question": "What has he?"},
    "roles": {"tokens": ["He", "has", "a", "gift"], "predicates": [1, 3]},
    "coreference": "He has a gift. He sings.",
}


def task(kind: str, folder: Path) -> Task:
    options = {"count": 20, "tokenizer": Tokenization("whitespace")}
    return Task.load(trained(kind, folder, None, changes={"elmo": "none", "epochs": 2}, **options))


@pytest.mark.parametrize("kind", ITEMS)
def test_one_item_is_answered_as_one_of_several(kind: str, tmp_path: Path) -> None:
    loaded, item = task(kind, tmp_path), ITEMS[kind]
    if isinstance(item, dict):
        item = {**item, "id": "one"}
    alone = loaded(item)
    first, second = loaded([item, item])
    assert first == alone
    assert second == (alone if kind != "coreference" else {**alone, "id": "1"})
    wanted = {"tagging": "tags", "questions": "answer", "coreference": "clusters"}
    first = alone[1] if kind == "roles" else alone
    assert wanted.get(kind, "arguments" if kind == "roles" else "label") in first


def test_texts_tokens_and_records_are_read_alike(tmp_path: Path) -> None:
    loaded = task("tagging", tmp_path)
    tokens = ["w1", "w2", "w3"]
    texts = loaded(["w1 w2 w3", tokens, {"text": "w1 w2 w3"}, {"tokens": np.array(tokens)}])
    assert len({tuple(answer["tags"]) for answer in texts}) == 1
    assert loaded(["", [], {"tokens": tokens, "text": None}])[:2] == [None, None]


def test_spans_have_their_text_and_where_it_stands(tmp_path: Path) -> None:
    """The text that was cut into the tokens, and not one that stands beside them."""
    loaded = task("tagging", tmp_path)
    loaded.model.answer = lambda batch, _: [  # type: ignore[method-assign]
        (["B-PER", "E-PER", "O"], [0.9, 0.75, 0.5]) for _ in batch
    ]
    span = {"start": 0, "stop": 2, "label": "PER", "score": 0.75}
    raw, tokens = "Ann  Lee sings", ["Ann", "Lee", "sings"]
    in_raw = span | {"text": "Ann  Lee", "characters": [0, 8]}
    items = [raw, {"text": raw}, tokens, {"tokens": tokens, "text": "Ann"}]
    found = [answer["spans"] for answer in loaded(items)]
    assert found == [[in_raw], [in_raw], *[[span | {"text": "Ann Lee"}]] * 2]


def test_arguments_have_their_text_and_where_it_stands(tmp_path: Path) -> None:
    loaded = task("roles", tmp_path)
    loaded.model.answer = lambda batch, _: [  # type: ignore[method-assign]
        (["B-A0", "B-V"], [0.75, 0.5]) for _ in batch
    ]
    (answer,) = loaded({"text": " Ann  sings", "predicates": [1]})
    argument = {
        "start": 0,
        "stop": 1,
        "label": "A0",
        "score": 0.75,
        "text": "Ann",
        "characters": [1, 4],
    }
    assert answer["arguments"] == [argument]


@pytest.mark.parametrize(
    ("kind", "items", "message"),
    [
        ("tagging", ["a b", 7], "^item:1: must be a text, tokens or a record, found 7$"),
        ("pairs", [{"premise": "a"}], "item:0: has no 'hypothesis', found premise"),
        ("roles", [{"tokens": ["a"]}], "item:0: has no 'predicates', found tokens"),
        ("questions", ["What?"], "item:0: has no 'context', found text"),
        ("tagging", ["a", "\ud800"], "item:1: is not UTF-8"),
        ("tagging", [["a", "\ud800"]], "item:0: is not UTF-8"),
        ("coreference", [{"sentences": [["\ud800"]]}], "item:0: is not UTF-8"),
        ("tagging", [{0: "a"}], "item:0: has no 'text', found 0;"),
        ("tagging", ["a\0"], "item:0: .* has a zero byte"),
    ],
)
def test_an_item_that_can_not_be_read_is_named(
    kind: str, items: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ElmoError, match=message):
        task(kind, tmp_path)(items)


BASELINE = task_settings("tagging", {"elmo": "none", "epochs": 1})
LABELLED = ExampleSet([Tagged("s:1", ("he",), ("O",))], {})


def train(**options: Any) -> object:
    given = {"out": "out", "settings": BASELINE, "model": None, "work": "work"} | options
    return train_task("tagging", LABELLED, LABELLED, **given)


WRONG: dict[str, tuple[Callable[[Task], object], str]] = {
    "a number": (lambda t: list(t.predict(5)), "examples must be a list or another iterable"),  # type: ignore[arg-type]
    "numbers": (lambda t: list(t.predict([5])), "must be an example, found 5"),  # type: ignore[list-item]
    "a text as tokens": (
        lambda t: list(t.predict([Tagged("s:1", "he", None)])),  # type: ignore[arg-type]
        "must be a list of tokens, found a string",
    ),
    "no labels": (
        lambda t: t.evaluate(ExampleSet([Tagged("s:1", ("he",), None)], {}, "bio")),
        "s:1: has no label to compare with",
    ),
    "no kind": (lambda t: read_examples("ner", "a.conll"), "no kind of task 'ner'; choose one of"),
    "columns in a list": (
        lambda t: read_examples("tagging", "a.conll", columns=["word"]),  # type: ignore[arg-type]
        "columns must be a Mapping",
    ),
    "a seed": (lambda t: train(seeds=3), "seeds must be a list or another iterable, found 3"),
    "no seeds": (lambda t: train(seeds=()), "seeds must be a list of whole numbers"),
    "a misspelt device": (lambda t: train(device="gpu"), "device must be cpu or cuda"),
}


def test_what_is_no_task_data_is_named(tmp_path: Path) -> None:
    loaded = task("tagging", tmp_path)
    for call, message in WRONG.values():
        with pytest.raises(ElmoError, match=message):
            call(loaded)
