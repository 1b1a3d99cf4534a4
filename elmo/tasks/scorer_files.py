"""Predictions in the formats of the official scorers: conlleval, srl-eval.pl, SQuAD's
evaluate-v1.1.py. A prediction is an example and the dictionary that `Task.describe` returns for it.
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
    """The input file of a scorer: the kind of task, whether it has gold labels, and a function that
    yields its lines, given the predictions and the path and columns of the examples."""

    kind: str
    needs_labels: bool
    lines: Callable[[Predictions, Path, Columns], Iterator[str]]


def _conlleval_lines(predictions: Predictions, _path: Path, _columns: Columns) -> Iterator[str]:
    """Yield `word gold predicted` for each token, and an empty line after each sentence. Tags of
    spans are BIO; white space within a word or tag becomes `_`."""
    example: Tagged
    for example, answer in predictions:
        gold = list(example.tags or ())
        if "spans" in answer:
            gold = [{"S": "B", "E": "I"}.get(tag[0], tag[0]) + tag[1:] for tag in gold]
        for row in zip(example.tokens, gold, answer["tags"], strict=True):
            yield " ".join("_".join(cell.split()) or "_" for cell in row)
        yield ""


def _srl_eval_lines(predictions: Predictions, path: Path, columns: Columns) -> Iterator[str]:
    """Yield a line for each token: its roleset, or `-` if it is no predicate, and a column such as
    `(ARG0*` for each predicate of the sentence."""
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
