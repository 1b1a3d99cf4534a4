"""Sources of vectors for token lists: ELMo's, from a store or an embedder; and static ones, the
rows of the biLM's softmax.

A store and an embedder return the same numbers: a store keeps float16, so computed vectors are also
rounded to float16. Shapes: L layers, T tokens, D width of a layer, W words, P numbers of a row, N
tokens of a window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.data.shards import write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import digest
from elmo.model.embedder import Embedder
from elmo.model.folder import WEIGHTS_FILE
from elmo.model.weights import load_weights, weight_shapes
from elmo.settings import StoreSettings
from elmo.store import FeatureStore, model_digest
from elmo.store.build import build
from elmo.store.manifest import MANIFEST_PATH
from elmo.tasks.examples import Tokens

SOFTMAX_WEIGHT = "softmax.weight"  # in a model's weights: a vector for each word

# Sentences → their layers, (L, T, D) each, in float32 or float16.
Vectors = Callable[[Sequence[Tokens]], list[Any]]


class StoredVectors:
    """The vectors of a store, looked up by a sentence's tokens."""

    def __init__(self, store: FeatureStore, *, sentences: Sequence[Tokens] | None = None) -> None:
        """Index the store by its sentences; `sentences`, if given, are their tokens in order."""
        self.store = store
        token_lists = (tuple(store.tokens(k)) for k in range(len(store)))
        self._index = {s: k for k, s in enumerate(token_lists if sentences is None else sentences)}
        self._has_tokens = sentences is None

    def __call__(self, sentences: Sequence[Tokens]) -> list[Floats]:
        """Return the vectors of each sentence, float32 (L, T, D)."""
        self.check_contains(sentences)
        return [self.store[self._index[sentence]] for sentence in sentences]

    def check_contains(self, sentences: Sequence[Tokens]) -> None:
        """Raise `ElmoError` if the store lacks one of the sentences."""
        for sentence in sentences:
            k = self._index.get(sentence)
            if k is None or not (self._has_tokens or list(sentence) == self.store.tokens(k)):
                raise ElmoError(
                    f"{self.store.path}: does not hold {' '.join(sentence[:8])!r}…; make the store "
                    "from the tokens of the task, or let the task make a new store"
                )


@dataclass(frozen=True)
class EmbeddedVectors:
    """The ELMo vectors of sentences, computed by an embedder when they are requested. `layers` are
    the numbers of the layers (None: all)."""

    embedder: Embedder
    layers: Sequence[int] | None

    def __call__(self, sentences: Sequence[Tokens]) -> list[npt.NDArray[np.float16]]:
        """Return the vectors of each sentence, float16 (L, T, D)."""
        unique_sentences = list(dict.fromkeys(sentences))  # several questions share a text
        layer_arrays = self.embedder.embed(unique_sentences, layers=self.layers)
        float16_layers = (layers_LTD.astype(np.float16) for layers_LTD in layer_arrays)
        layers_by_sentence = dict(zip(unique_sentences, float16_layers, strict=True))
        return [layers_by_sentence[sentence] for sentence in sentences]


class SoftmaxVectors:
    """Static vectors: the rows of the biLM's softmax. Words with similar neighbours have similar
    rows.

    A word that is not in the vocabulary has the row of its lower case, or else zeros. The vector of
    a token joins the rows of the `window` tokens before it, its own, and those of the `window`
    tokens after it.
    """

    def __init__(self, model: Path, *, window: int) -> None:
        """Read the rows of a model folder, which must have a softmax."""
        self._window = window
        words = Vocabulary.load(model).words
        self._row_by_word = {word: row for row, word in enumerate(words)}
        weights_WP = load_weights(model / WEIGHTS_FILE, [SOFTMAX_WEIGHT])[SOFTMAX_WEIGHT].numpy()
        weights_WP -= weights_WP.mean(0)
        self._rows_WP = np.concatenate([weights_WP, np.zeros_like(weights_WP[:1])])

    def __call__(self, sentences: Sequence[Tokens]) -> list[Floats]:
        """Return the vectors of each sentence as one layer, float32 (1, T, D)."""
        row_by_word, zero_row = self._row_by_word, len(self._rows_WP) - 1
        layers = []
        for sentence in sentences:
            rows = [row_by_word.get(w, row_by_word.get(w.lower(), zero_row)) for w in sentence]
            padded_rows = np.array([*[zero_row] * self._window, *rows, *[zero_row] * self._window])
            window_TN = np.arange(len(rows))[:, None] + np.arange(2 * self._window + 1)
            layers.append(self._rows_WP[padded_rows[window_TN]].reshape(1, len(rows), -1))
        return layers


def softmax_vectors(model: Path, *, window: int) -> SoftmaxVectors | None:
    """Return the static vectors of a model folder; None if the folder has no softmax."""
    has_softmax = SOFTMAX_WEIGHT in weight_shapes(model / WEIGHTS_FILE)
    return SoftmaxVectors(model, window=window) if has_softmax else None


def build_sentence_store(
    sentences: Sequence[Tokens],
    *,
    model: Path,
    work: Path,
    layers: Sequence[int] | None,
    device: str = "cpu",
) -> StoredVectors:
    """Embed distinct sentences with a model into a store below the folder `work`; return its
    vectors, of the given `layers` (None: all).

    The store's folder is named after the sentences and the model, so an existing one is reused.
    """
    key = digest([model_digest(model), list(map(list, sentences))])
    folder = work / key[:16]
    if not Location(folder / "store").exists(MANIFEST_PATH):
        write_shards(folder / "shards", sentences, shard_sentences=20_000)
        build(
            folder / "store",
            shards=folder / "shards",
            model=model,
            settings=StoreSettings(),
            work=folder / "unfinished",
            device=device,
        )
    store = FeatureStore(folder / "store", layers=layers, model=model)
    return StoredVectors(store, sentences=sentences)
