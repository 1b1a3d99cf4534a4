"""A scikit-learn transformer: texts → vectors, in a pipeline with any classifier.

make_pipeline(ElmoVectorizer("models/finetune"), LogisticRegression())
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from elmo.data.arrays import Floats
from elmo.data.texts import list_texts
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder

try:
    from sklearn.base import BaseEstimator, TransformerMixin
except ModuleNotFoundError:
    raise ElmoError("ElmoVectorizer needs: pip install 'elmo-pipeline[sklearn]'") from None


class ElmoVectorizer(TransformerMixin, BaseEstimator):
    """A scikit-learn transformer from texts to vectors: `transform(texts)` is
    `Embedder.encode(texts)` with these settings, and `fit` learns nothing.

    `model` is as for `Embedder.from_pretrained`. A pickled transformer contains that name, not the
    weights.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        pooling: str = "mean",
        normalize: bool = False,
        layers: Sequence[int] | None = None,
        batch_size: int = 256,
        device: str = "cpu",
    ) -> None:
        self.model, self.pooling, self.normalize = model, pooling, normalize
        self.layers, self.batch_size, self.device = layers, batch_size, device

    def fit(self, texts: Sequence[str], y: Any = None) -> "ElmoVectorizer":
        """Load the model and return the transformer; nothing is learned from the texts."""
        self._load_embedder()
        return self

    def transform(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of texts, float32 (texts, dim)."""
        if self.pooling == "none":
            raise ElmoError("pooling 'none' gives tables of several lengths; choose another")
        if isinstance(texts, str):
            raise ElmoError("give a list of texts, not one text")
        options: dict[str, Any] = {"normalize": self.normalize, "layers": self.layers}
        embedder, several = self._load_embedder(), list_texts(texts)
        return np.asarray(
            embedder.encode(several, self.pooling, batch_size=self.batch_size, **options)  # type: ignore[arg-type]
        )

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the features: elmo0 to elmo(dim - 1)."""
        return np.array([f"elmo{k}" for k in range(self._load_embedder().dim)], object)

    def _load_embedder(self) -> Embedder:
        source = (str(self.model), self.device)
        if getattr(self, "_source", None) != source:
            self._embedder = Embedder.from_pretrained(self.model, device=self.device)
            self._source = source
        return self._embedder

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getstate__(self) -> Any:
        """Return the state to pickle, without the model's weights."""
        state = dict(super().__getstate__())
        return {
            name: value for name, value in state.items() if name not in ("_embedder", "_source")
        }
