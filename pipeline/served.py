"""The registered model: what `mlflow.pyfunc.load_model` gives. It needs `elmo` alone.

Input: a column or list of sentences, as text (tokens between spaces) or as token lists. Output: for
each sentence a nested list; `layers` says of what: `all` (layers, tokens, dim), `average` or `top`
(tokens, dim), or comma-separated weights, one a layer, of a mix as learned (before their softmax),
scaled by `gamma`.
"""

from typing import Any

import mlflow
import numpy as np
from mlflow.pyfunc import PythonModel
from mlflow.types.schema import AnyType, Array, ColSpec, DataType, ParamSchema, ParamSpec, Schema

EXAMPLE = ["He has a gift for music", "They wrapped the gift"]


def signature() -> Any:
    """Text or token lists in, nested lists of floats out."""
    from mlflow.models import ModelSignature

    return ModelSignature(
        Schema([ColSpec(AnyType())]),
        Schema([ColSpec(Array(AnyType()))]),
        ParamSchema(
            [
                ParamSpec("layers", DataType.string, "average"),
                ParamSpec("gamma", DataType.double, 1.0),
                ParamSpec("batch_size", DataType.long, 64),
            ]
        ),
    )


class Served(PythonModel):
    """Embeds sentences with a model folder."""

    def load_context(self, context: Any) -> None:
        """Load the weights once, and embed once: the first request is as quick as any."""
        from elmo.embedder import Embedder

        self.embedder = Embedder.load(context.artifacts["model"])
        self.embedder.embed([["warm"]])

    def predict(
        self,
        context,
        model_input,
        params=None,
    ):
        """Embed each sentence. No annotations here: MLflow would take them for its own schema."""
        settings = params or {}
        sentences = [_tokens(item) for item in _items(model_input)]
        found = self.embedder.embed(sentences, int(settings.get("batch_size", 64)))
        layers, gamma = str(settings.get("layers", "average")), float(settings.get("gamma", 1.0))
        return [_chosen(vectors, layers, gamma).tolist() for vectors in found]


def _items(model_input: Any) -> list[Any]:
    if hasattr(model_input, "iloc"):
        return list(model_input.iloc[:, 0])
    return list(model_input)


def _tokens(item: Any) -> list[str]:
    if isinstance(item, dict):
        (item,) = item.values()
    return item.split() if isinstance(item, str) else [str(token) for token in item]


def _chosen(vectors: np.ndarray, layers: str, gamma: float) -> np.ndarray:
    from elmo.errors import ElmoError

    if layers == "all":
        return vectors
    if layers in ("average", "top"):
        return vectors.mean(0) if layers == "average" else vectors[-1]
    try:
        weights = np.array([float(part) for part in layers.split(",")])
    except ValueError:
        raise ElmoError(
            f"layers must be all, average, top or comma-separated weights, found {layers!r}"
        ) from None
    if len(weights) != len(vectors):
        raise ElmoError(f"layers has {len(weights)} weights, the model {len(vectors)} layers")
    share = np.exp(weights - weights.max())
    return gamma * np.tensordot(share / share.sum(), vectors, 1)


if __name__ != "pipeline.served":
    mlflow.models.set_model(Served())
