"""A column of text → a column of vectors, batch by batch: `datasets.map` and Ray Data.

    dataset.map(BatchEncoder("models/finetune", column="text"), batched=True)
    ds.map_batches(BatchEncoder, fn_constructor_args=("models/finetune",), concurrency=2)

Neither library is imported here.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.model.pretrained import pretrained_folder
from elmo.store import model_digest


def model_input_items(model_input: Any) -> list[Any]:
    """Return the input of an MLflow model as a list with one item per prediction: a single text as
    a list of one, a table (a dictionary of columns or a data frame) as one dictionary per row, any
    other sequence as a list; `ElmoError` names what is none of these."""
    if isinstance(model_input, str):
        return [model_input]
    if isinstance(model_input, dict):
        for name, column in model_input.items():
            if isinstance(column, str | Mapping) or not hasattr(column, "__len__"):
                raise ElmoError(f"the column {name} must be a list, found {column!r:.80}")
        if len(set(map(len, model_input.values()))) > 1:
            counts = ", ".join(f"{name} {len(column)}" for name, column in model_input.items())
            raise ElmoError(f"the columns must have equally many rows, found {counts}")
        rows = zip(*model_input.values(), strict=True)
        return [dict(zip(model_input, row, strict=True)) for row in rows]
    if hasattr(model_input, "iloc"):
        return list(model_input.to_dict(orient="records"))
    if not isinstance(model_input, Iterable):
        raise ElmoError(f"the input must be a text, a list or a table, found {model_input!r:.80}")
    return list(model_input)


class BatchEncoder:
    """A function for `datasets.map` or Ray Data's `map_batches`: it takes a batch (a dictionary of
    columns) and adds the vectors of the texts in `column` as the column `into`.

    `model` is as for `Embedder.from_pretrained`, and `options` are passed to `Embedder.encode`.
    When pickled it contains the model's name and digest, not its weights; each process loads the
    model once.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        column: str = "text",
        into: str = "elmo",
        device: str = "cpu",
        **options: Any,
    ) -> None:
        if options.get("pooling") == "none":
            raise ElmoError("pooling 'none' gives tables of several lengths; choose another")
        self.model, self.column, self.into = str(model), column, into
        self.device, self.options = device, options
        self.digest = model_digest(pretrained_folder(model))
        self._embedder: Embedder | None = None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the additional column of vectors."""
        if self.column not in batch:
            names = ", ".join(batch)
            raise ElmoError(f"the batch has no column {self.column!r}, it has {names}; set column")
        if self._embedder is None:
            self._embedder = Embedder.from_pretrained(self.model, device=self.device)
            if self._embedder.model.digest != self.digest:
                raise ElmoError(f"{self.model}: has changed since this encoder was made")
        texts = [text if text is not None else "" for text in batch[self.column]]
        return {**batch, self.into: self._embedder.encode(texts, **self.options)}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the model's weights."""
        return self.__dict__ | {"_embedder": None}
