"""Predictions as the official scorers read them: conlleval, srl-eval.pl, SQuAD's evaluate-v1.1.py.

A prediction is an example with what `Task.describe` says of its answer.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elmo.errors import ElmoError
from elmo.tasks.examples import Tagged
from elmo.tasks.formats.fields import Columns
from elmo.tasks.formats.roles import read_rolesets
from elmo.tasks.schemes import lenient_spans

Predictions = Iterable[tuple[Any, Mapping[str, Any]]]


class ScorerFile(NamedTuple):
    """The file of a scorer: the kind of task it scores, whether gold labels stand in it, and the
    function that yields its lines, called with the predictions and with the path and columns of the
    examples."""

    kind: str
    needs_labels: bool
    lines: Callable[[Predictions, Path, Columns], Iterator[str]]


def _conlleval_lines(predictions: Predictions, _path: Path, _columns: Columns) -> Iterator[str]:
    """Yield `word gold predicted` for each token, `_` for white space within one of them, and an
    empty line after each sentence; tags of spans are BIO."""
    example: Tagged
    for example, answer in predictions:
        gold = list(example.tags or ())
        if "spans" in answer:
            gold = [{"S": "B", "E": "I"}.get(tag[0], tag[0]) + tag[1:] for tag in gold]
        for row in zip(example.tokens, gold, answer["tags"], strict=True):
            yield " ".join("_".join(cell.split()) or "_" for cell in row)
        yield ""


def _srl_eval_lines(predictions: Predictions, path: Path, columns: Columns) -> Iterator[str]:
    """Yield for each token the roleset of the predicate that it is, or `-`, and a column for each
    predicate of the sentence, such as `(ARG0*`; sentences without predicates have the first column
    alone."""
    if path.is_dir() or ".jsonl" in path.suffixes:
        raise ElmoError(f"{path}: --as props takes one file of columns")
    prediction_iterator = iter(predictions)
    for rolesets in read_rolesets(path, columns):
        rows = [rolesets]
        for _ in range(sum(name != "-" for name in rolesets)):
            _, answer = next(prediction_iterator)
            openings, closings = [""] * len(rolesets), [""] * len(rolesets)
            for start, stop, label in lenient_spans(answer["tags"]):
                openings[start], closings[stop - 1] = f"({label}", ")"
            rows.append([f"{a}*{b}" for a, b in zip(openings, closings, strict=True)])
        yield from map("\t".join, zip(*rows, strict=True))
        yield ""


def _squad_lines(predictions: Predictions, path: Path, _columns: Columns) -> Iterator[str]:
    """Yield one JSON object: each question's answer by its id."""
    answer_by_id: dict[str, str] = {}
    for _, answer in predictions:
        if answer["id"] in answer_by_id:
            raise ElmoError(
                f"{path}: two questions have the id {answer['id']!r}; give each its own"
            )
        answer_by_id[answer["id"]] = answer["answer"]
    yield json.dumps(answer_by_id, ensure_ascii=False)


SCORER_FILES: Mapping[str, ScorerFile] = {
    "conll": ScorerFile("tagging", True, _conlleval_lines),
    "props": ScorerFile("roles", False, _srl_eval_lines),
    "squad": ScorerFile("questions", False, _squad_lines),
}
