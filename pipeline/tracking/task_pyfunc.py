"""A trained task in MLflow: what `mlflow.pyfunc.load_model` gives. It needs `elmo` alone.

Input: items, each a text, or a record of what the kind of task reads (docs/tasks.md, JSON lines):
`tokens`; `premise` and `hypothesis`; `context` and `question`; `tokens` and `predicates`;
`sentences`. In a list, or in a table with those columns. Output: for each item what `elmo task
predict` says of it; for `roles` a list, one for each predicate; None for one without tokens.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

TOKENS = Array(DataType.string)
FIELDS: dict[str, dict[str, Any]] = {
    "tagging": {"text": DataType.string, "tokens": TOKENS},
    "classification": {"text": DataType.string, "tokens": TOKENS},
    "pairs": {"premise": DataType.string, "hypothesis": DataType.string},
    "questions": {"context": DataType.string, "question": DataType.string},
    "roles": {"tokens": TOKENS, "predicates": Array(DataType.long)},
    "coreference": {"sentences": Array(TOKENS)},
}
EXAMPLES: dict[str, list[Any]] = {
    "tagging": [{"tokens": ["He", "has", "a", "gift"]}],
    "classification": [{"tokens": ["He", "has", "a", "gift"]}],
    "pairs": [{"premise": ["He", "has", "a", "gift"], "hypothesis": ["He", "has", "nothing"]}],
    "questions": [{"context": "He has a gift.", "question": "What has he?"}],
    "roles": [{"tokens": ["He", "has", "a", "gift"], "predicates": [1]}],
    "coreference": [{"sentences": [["He", "has", "a", "gift"], ["He", "sings"]]}],
}


def signature(kind: str) -> ModelSignature:
    """The columns of a kind of task.

    MLflow has no type for "text or records": the columns are optional, and what comes in is checked
    by the task's own reader, not cast by MLflow.
    """
    columns = [ColSpec(of, name, required=False) for name, of in FIELDS[kind].items()]
    model_signature = ModelSignature(inputs=Schema(columns))
    model_signature._is_signature_from_type_hint = True  # "the model checks its input"
    return model_signature


class ServedTask(PythonModel):
    """Predicts with the folder of a trained task."""

    def load_context(self, context: Any) -> None:
        """Load one seed's weights once."""
        from elmo.tasks.task import Task

        seed = (context.model_config or {}).get("seed")
        self.task = Task.load(Path(context.artifacts["task"]), seed=seed)

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[Any]:
        """Predict each item.

        The hint is one of which MLflow makes no signature; a list will do as well as a table.
        """
        from elmo.integrations.batches import items_of
        from elmo.tasks.readers import read

        kind = self.task.record.kind
        records = [_record(item, kind) for item in items_of(model_input)]
        answers: list[list[Any]] = [[] for _ in records]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "items.jsonl"
            path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
            labelled = read(
                kind, path, tokenizer=self.task.record.tokenizer, labelled=False, empty=True
            )
        for example, prediction in self.task.predict(labelled.examples):
            row = int(example.source.rpartition(":")[2]) - 1
            answers[row].append(self.task.describe(example, prediction))
        if kind == "roles":
            return answers
        return [answer[0] if answer else None for answer in answers]


def _record(item: Any, kind: str) -> dict[str, Any]:
    """An item as a line of JSON: a text by itself is `text`."""
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, list | tuple):
        return {"tokens": list(item)}
    if not isinstance(item, dict):
        raise ValueError(f"an item must be text, tokens or a record, found {item!r}")
    plain = {name: _plain(value) for name, value in item.items()}
    return {name: value for name, value in plain.items() if value is not None}


def _plain(value: Any) -> Any:
    """A cell of a table as JSON has it: no arrays, and None where it is empty."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and value != value else value


if not __package__:  # MLflow runs this file alone, as the code of a model
    mlflow.models.set_model(ServedTask())
