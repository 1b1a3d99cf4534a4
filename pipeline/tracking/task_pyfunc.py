"""A trained task as `mlflow.pyfunc.load_model` gives it; it needs `elmo` alone.

Input: items, each a text, or a record of what the kind of task reads (docs/tasks.md, JSON lines):
`tokens`; `premise` and `hypothesis`; `context` and `question`; `tokens` and `predicates`;
`sentences`. They come in a list, or in a table with those columns. Output: the prediction of `Task`
for each item; for `roles` a list, one for each predicate; None for an item without tokens.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.exceptions import BAD_REQUEST, MlflowException
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import Array

from elmo.tasks.kinds import KINDS


def signature(kind: str) -> ModelSignature:
    """Return the MLflow signature of a kind of task: its input columns.

    MLflow has no type for "text or records": the columns are optional, and the input is checked by
    the task's own reader, not cast by MLflow.
    """
    fields = {name: value for example in KINDS[kind].examples for name, value in example.items()}
    columns = [ColSpec(_type(value), name, required=False) for name, value in fields.items()]
    model_signature = ModelSignature(inputs=Schema(columns))
    model_signature._is_signature_from_type_hint = True  # "the model checks its input"
    return model_signature


def _type(value: Any) -> Any:
    """Return MLflow's type of an example's field."""
    if isinstance(value, list):
        return Array(_type(value[0]))
    return DataType.long if isinstance(value, int) else DataType.string


class ServedTask(PythonModel):
    """An MLflow model that predicts with the folder of a trained task."""

    def load_context(self, context: Any) -> None:
        """Load the trained task, the artifact "task" of MLflow's `context`, with one seed's
        weights.

        It is the `seed` of the model's config, else the best on dev.
        """
        from elmo.tasks.task import Task

        seed = (context.model_config or {}).get("seed")
        self.task = Task.load(Path(context.artifacts["task"]), seed=seed)

    def predict(
        self,
        context: Any,
        model_input: pd.DataFrame,  # MLflow would make a signature of a more exact hint
        params: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Return the prediction for each item of a request, which comes as a list or a table.

        `context` and `params` are MLflow's and not read.
        """
        from elmo.data.texts import list_items
        from elmo.errors import ElmoError

        try:
            answers: list[Any] = self.task(list_items(model_input))
        except ElmoError as error:  # a server shows the message alone, without a stack trace
            message = " ".join(str(error).split())
            raise MlflowException(message, error_code=BAD_REQUEST) from None
        return answers


if not __package__:  # MLflow runs this file alone, as the code of a model
    mlflow.models.set_model(ServedTask())
