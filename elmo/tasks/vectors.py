"""ELMo vectors of token lists: from a store made of them, or embedded as they are asked for.

Both give the same numbers: a store keeps float16, so what is embedded on the fly is rounded so too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from elmo.arrays import Floats
from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.files import digest
from elmo.location import Location
from elmo.settings import StoreSettings
from elmo.shards import write_shards
from elmo.store import FeatureStore, model_digest
from elmo.store.build import build
from elmo.store.manifest import versions
from elmo.tasks.examples import Tokens

# Sentences → their layers, float32 (L, T, D) each.
Vectors = Callable[[Sequence[Tokens]], list[Floats]]


class StoredVectors:
    """The vectors that a store holds, found by the sentence's tokens."""

    def __init__(self, store: FeatureStore, *, sentences: Sequence[Tokens] | None = None) -> None:
        """`sentences` are the store's tokens in its order, where the caller knows them."""
        self.store = store
        numbers = (tuple(store.tokens(k)) for k in range(len(store)))
        self._numbers = {s: k for k, s in enumerate(numbers if sentences is None else sentences)}
        self._sentences = sentences

    def __call__(self, sentences: Sequence[Tokens]) -> list[Floats]:
        """The layers of each, float32 (L, T, D)."""
        layers = []
        for sentence in sentences:
            k = self._numbers.get(sentence)
            if k is None or (
                self._sentences is not None and list(sentence) != self.store.tokens(k)
            ):
                raise ElmoError(
                    f"{self.store.path}: does not hold {' '.join(sentence[:8])!r}…; make the store "
                    "from the very tokens of the task, or let the task make its own"
                )
            layers.append(self.store[k])
        return layers

    def check(self, sentences: Sequence[Tokens]) -> None:
        """Refuse a store that lacks one of the sentences."""
        for sentence in sentences:
            if sentence not in self._numbers:
                self([sentence])


class EmbeddedVectors:
    """Vectors computed when they are asked for."""

    def __init__(self, embedder: Embedder, *, layers: Sequence[int] | None) -> None:
        self._embedder, self._layers = embedder, layers

    def __call__(self, sentences: Sequence[Tokens]) -> list[Floats]:
        """The layers of each, float32 (L, T, D)."""
        embedded = self._embedder.embed(sentences, layers=self._layers)
        return [layers.astype(np.float16).astype(np.float32) for layers in embedded]


def store_of(
    sentences: Sequence[Tokens],
    *,
    model: Path,
    work: Path,
    layers: Sequence[int] | None,
    device: str = "cpu",
) -> StoredVectors:
    """The vectors of distinct sentences, through shards and a store under `work`.

    The store's folder is named by the sentences and the model, so it is made once.
    """
    made_from = digest([model_digest(model), [list(s) for s in sentences]])
    folder = work / made_from[:16]
    if not versions(Location.of(folder / "store")):
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
