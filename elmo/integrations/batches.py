"""A column of text → a column of vectors, batch by batch: `datasets.map` and Ray Data.

    dataset.map(BatchEncoder("models/finetune", column="text"), batched=True)
    ds.map_batches(BatchEncoder, fn_constructor_args=("models/finetune",), concurrency=2)

Neither library is imported here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.model.pretrained import pretrained_folder
from elmo.store import model_digest


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
        """Return the batch with the additional column of vectors; a record, whose `column` is one
        text, with its vector."""
        if not hasattr(batch, "keys"):
            kind = type(batch).__name__
            raise ElmoError(
                f"the batch must be a dictionary of columns, found {kind}; pass "
                'batch_format="numpy" to map_batches'
            )
        if self.column not in batch:
            names = ", ".join(map(str, batch.keys()))
            raise ElmoError(f"the batch has no column {self.column!r}, it has {names}; set column")
        if self._embedder is None:
            self._embedder = Embedder.from_pretrained(self.model, device=self.device)
            if self._embedder.model.digest != self.digest:
                raise ElmoError(f"{self.model}: has changed since this encoder was made")
        return {**batch, self.into: self._embedder.encode(batch[self.column], **self.options)}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, without the model's weights."""
        return self.__dict__ | {"_embedder": None}
