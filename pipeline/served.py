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

EXAMPLE = ["He has a gift for music", ["They", "wrapped", "the", "gift"]]
PARAMS = {"layers": "average", "gamma": 1.0, "batch_size": 256}


class Served(PythonModel):
    """Embeds sentences with a model folder."""

    def load_context(self, context: Any) -> None:
        """Load the weights once, and embed a little: the first request is as quick as any."""
        from elmo.embedder import Embedder

        self.embedder = Embedder.load(context.artifacts["model"])
        for lengths in ((1,), (2,), (3,), (3, 1), (5, 4, 2)):
            self.embedder.embed([["warm"] * length for length in lengths])

    def predict(
        self,
        context: Any,
        model_input: list[Any],
        params: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Embed each sentence. MLflow takes the typed signature from these annotations."""
        settings = params or {}
        sentences = [_tokens(item) for item in _items(model_input)]
        found = self.embedder.embed(sentences, int(settings.get("batch_size", 256)))
        layers, gamma = str(settings.get("layers", "average")), float(settings.get("gamma", 1.0))
        return [_chosen(vectors, layers, gamma).tolist() for vectors in found]


def _items(model_input: Any) -> list[Any]:
    if hasattr(model_input, "iloc"):
        return list(model_input.iloc[:, 0])
    return list(model_input)


def _tokens(item: Any) -> list[str]:
    if isinstance(item, dict) and len(item) == 1:
        (item,) = item.values()
    if isinstance(item, str):
        return item.split()
    if not isinstance(item, list | tuple | np.ndarray) or not all(isinstance(t, str) for t in item):
        raise ValueError(f"a sentence must be text or a list of tokens, found {item!r}")
    return list(item)


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
