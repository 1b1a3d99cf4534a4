"""A trained task in MLflow: what `mlflow.pyfunc.load_model` gives. It needs `elmo` alone.

Input: items, each a text, or a record of what the kind of task reads (docs/tasks.md, JSON lines):
`tokens`; `premise` and `hypothesis`; `context` and `question`; `tokens` and `predicates`;
`sentences`. In a list, or in a table with those columns. Output: what `Task` itself says of each
item; for `roles` a list, one for each predicate; None for one without tokens.
"""

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

        answers: list[Any] = self.task(items_of(model_input))
        return answers


if not __package__:  # MLflow runs this file alone, as the code of a model
    mlflow.models.set_model(ServedTask())
