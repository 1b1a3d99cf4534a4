"""The registered model that `mlflow.pyfunc.load_model` loads; it needs only `elmo`.

Input: a list of items, or a table with a column `text` or `tokens`. An item is a text, which the
model's tokenizer splits (each sentence is embedded alone), or a token list. Output: one float32
array per item (a server sends nested lists). `layers` selects its content: `all` (layers, tokens,
dim), `average` or `top` (tokens, dim), or comma-separated mix weights, one per layer (before their
softmax), scaled by `gamma`. With `pooling: mean`, it is the mean over the tokens.
"""

import sys
from numbers import Real
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.exceptions import BAD_REQUEST, MlflowException
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array

# The input example of a model; without a tokenizer, only the last item is used.
INPUT_EXAMPLE = ["He has a gift for music", ["They", "wrapped", "the", "gift"]]
COLUMNS = ("text", "tokens")
_BATCH_SENTENCES = 256
DEFAULT_PARAMS: dict[str, Any] = {"layers": "average", "gamma": 1.0, "pooling": "none"}


def make_signature() -> ModelSignature:
    """Return the model's MLflow signature: columns `text` and `tokens` in, a table of vectors out.

    MLflow has no type for "text or token lists", so both columns are optional, and
    `ServedEmbedder.predict` checks the input. If MLflow cast it, token lists would become columns.
    """
    model_signature = ModelSignature(
        inputs=Schema(
            [
                ColSpec(DataType.string, COLUMNS[0], required=False),
                ColSpec(Array(DataType.string), COLUMNS[1], required=False),
            ]
        ),
        outputs=Schema([ColSpec(Array(Array(DataType.float)))]),
        params=ParamSchema(
            [
                ParamSpec("layers", DataType.string, DEFAULT_PARAMS["layers"]),
                ParamSpec("gamma", DataType.double, DEFAULT_PARAMS["gamma"]),
                ParamSpec("pooling", DataType.string, DEFAULT_PARAMS["pooling"]),
            ]
        ),
    )
    model_signature._is_signature_from_type_hint = True  # "the model checks its input"
    return model_signature


class ServedEmbedder(PythonModel):
    """The MLflow model that `mlflow models serve` runs: it embeds sentences with a model folder."""

    def load_context(self, context: Any) -> None:
        """Load the model folder that is the artifact "model" of MLflow's `context`.

        In a server, also adapt MLflow's server, and compile the LSTM cell now, so that the first
        request is not slow.
        """
        from elmo.integrations.scoring_server import adapt_scoring_server
        from elmo.model.embedder import Embedder

        adapt_scoring_server()
        self.embedder = Embedder.load(context.artifacts["model"])
        if "mlflow.pyfunc.scoring_server.app" in sys.modules:  # this is a server
            self.embedder.bilm.lstm.compiled = True
            for lengths in ((1,), (2,), (3,), (3, 1), (5, 4, 2)):
                self.embedder.embed([["warm"] * length for length in lengths])

    def predict(
        self,
        context: Any,
        model_input: pd.DataFrame,  # from a more exact hint, MLflow would make a signature
        params: dict[str, Any] | None = None,
    ) -> list[np.ndarray]:
        """Return the vectors of each item of a request, a list or a table.

        `params` may have `layers`, `gamma` and `pooling`, as in the description of this module.
        `context` is not used.
        """
        from elmo.errors import ElmoError

        try:
            return self._embed(model_input, params)
        except (ElmoError, ValueError, OverflowError) as error:  # a server shows no stack trace
            message = " ".join(str(error).split())
            raise MlflowException(message, error_code=BAD_REQUEST) from None

    def _embed(self, model_input: Any, params: dict[str, Any] | None) -> list[np.ndarray]:
        from elmo.data.texts import check_no_printed_lists, list_items
        from elmo.integrations.scoring_server import check_names

        if not isinstance(params, dict | None):
            raise ValueError(f"params must be an object, found {params!r:.80}")
        check_names("params", params or {}, DEFAULT_PARAMS)
        settings = DEFAULT_PARAMS | (params or {})
        if settings["pooling"] not in ("none", "mean"):
            raise ValueError(f"pooling must be none or mean, found {settings['pooling']!r}")
        if isinstance(gamma := settings["gamma"], bool) or not isinstance(gamma, Real):
            raise ValueError(f"gamma must be a number, found {gamma!r:.80}; leave it out")
        rows = list_items(model_input)
        items = [_item_of_row(row) if isinstance(row, dict) else row for row in rows]
        check_no_printed_lists((item for item in items if isinstance(item, str)), "the request")
        texts = map(self._sentences, items)
        layer_arrays = self.embedder.embed_stream(texts, _BATCH_SENTENCES)
        layers, gamma = str(settings["layers"]), float(gamma)
        mixes = (_mix_layers(vectors, layers, gamma).astype(np.float32) for vectors in layer_arrays)
        with np.errstate(over="ignore", invalid="ignore"):  # refused below
            outputs = list(mixes)
            if settings["pooling"] == "mean":
                outputs = [vectors.sum(-2) / max(1, vectors.shape[-2]) for vectors in outputs]
        if not all(np.isfinite(vectors).all() for vectors in outputs):
            raise ValueError("the vectors are not all finite numbers; choose other layers or gamma")
        return outputs

    def _sentences(self, item: Any) -> list[list[str]]:
        if isinstance(item, str):
            return self.embedder.tokenize(item)
        is_list = isinstance(item, list | tuple | np.ndarray)
        if not is_list or not all(isinstance(token, str) for token in item):
            raise ValueError(f"a sentence must be text or a list of tokens, found {item!r:.80}")
        return [list(item)]


def _item_of_row(row: dict[str, Any]) -> Any:
    """Return the item in a row of a table; other columns are ignored."""
    from elmo.data.texts import is_missing

    if not any(name in row for name in COLUMNS):
        columns = ", ".join(map(str, row)) or "none"
        raise ValueError(f"the columns must be {' or '.join(COLUMNS)}, found {columns}")
    cells = [row[name] for name in COLUMNS if not is_missing(row.get(name))]
    if len(cells) != 1:
        raise ValueError(f"a row must have either {' or '.join(COLUMNS)}, found {row!r:.80}")
    if is_missing(row.get("text")) and isinstance(cells[0], str):
        raise ValueError(f"tokens must be a list, found {cells[0]!r:.80}; name the column text")
    return cells[0]


def _mix_layers(vectors: np.ndarray, layers: str, gamma: float) -> np.ndarray:
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
        raise ElmoError(f"layers has {len(weights)} weights; the model has {len(vectors)} layers")
    exp_weights = np.exp(weights - weights.max())
    return gamma * np.tensordot(exp_weights / exp_weights.sum(), vectors, 1)


if not __package__:  # MLflow runs this file alone, as the code of a model
    mlflow.models.set_model(ServedEmbedder())
