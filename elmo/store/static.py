"""Static vectors: one per distinct token of a store, either its layer 0 or a mean over occurrences.

Shapes: L layers, N distinct tokens, T tokens of a block, D the width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.errors import ElmoError, NotFound
from elmo.io.atomic import new_file_if_absent
from elmo.store import FeatureStore

_ROWS = 1024  # lines that are formatted at a time


@dataclass(frozen=True)
class StaticVectors:
    """One vector per word: words by falling count, with their `counts` and `vectors` (words,
    width)."""

    words: list[str]
    counts: npt.NDArray[np.int64]
    vectors: Floats

    def __getitem__(self, word: str) -> Floats:
        """Return the vector of a word; raise `NotFound` if the store does not contain it."""
        return self.vectors[self._index(word)]

    def most_similar(self, word: str, *, k: int = 10) -> list[tuple[str, float]]:
        """Return the k words nearest to a word by cosine, each with its cosine, nearest first."""
        index = self._index(word)
        norm_N = np.maximum(np.linalg.norm(self.vectors, axis=1), 1e-12)
        cosine_N = self.vectors @ (self.vectors[index] / norm_N[index]) / norm_N
        cosine_N[index] = -np.inf
        order = np.argsort(-cosine_N, kind="stable")[: min(k, len(self.words) - 1)]
        return [(self.words[i], float(cosine_N[i])) for i in order]

    def _index(self, word: str) -> int:
        try:
            return self.words.index(word)
        except ValueError:
            raise NotFound(f"the store has no token {word[:100]!r}") from None


def static_vectors(
    store: FeatureStore,
    *,
    kind: Literal["mean", "layer_0"] = "mean",
    layers: Sequence[int | str] | None = None,
) -> StaticVectors:
    """Return one vector per distinct token of a store.

    `kind="mean"` takes the mean over all occurrences, and over `layers` (default: those of the
    store). `kind="layer_0"` takes the context-free layer 0: it is [x; x], so only x is returned,
    which leaves the cosines unchanged.
    """
    if kind == "layer_0" and "layer_0" not in store.layout.layers:
        raise ElmoError(f"{store.path}: has no layer 0; it holds {', '.join(store.layout.layers)}")
    names = store.layers if layers is None else store._names(layers, among=store.layout.layers)
    width = store.dim // 2 if kind == "layer_0" else store.dim
    rows: dict[str, int] = {}
    sums_ND = np.zeros((0, width), np.float32)
    counts_N = np.zeros(0, np.int64)
    for number in store.numbers():
        part = store.part(number)
        tokens = part.types.tokens.to_pylist()
        row_of = np.array([rows.setdefault(token, len(rows)) for token in tokens], np.int64)
        if len(rows) > len(counts_N):  # room for twice as many, so that few copies are made
            added_rows = max(len(rows), 2 * len(counts_N)) - len(counts_N)
            sums_ND = np.concatenate([sums_ND, np.zeros((added_rows, width), np.float32)])
            counts_N = np.concatenate([counts_N, np.zeros(added_rows, np.int64)])
        if kind == "layer_0":
            sums_ND[row_of] = part.types.x(np.arange(len(tokens)))
            for group in range(part.row_groups):
                ids_T = part.block(group, []).type_ids
                counts_N += np.bincount(row_of[ids_T], minlength=len(counts_N))
            continue
        for block in part.blocks(names):
            if len(block.type_ids):
                _add_to_sums(sums_ND, counts_N, row_of[block.type_ids], block.vectors.mean(0))
    sums_ND, counts_N = sums_ND[: len(rows)], counts_N[: len(rows)]
    if kind == "mean":
        sums_ND /= np.maximum(counts_N, 1)[:, None]
    words = list(rows)
    order = sorted(range(len(words)), key=lambda i: (-counts_N[i], words[i]))
    return StaticVectors([words[i] for i in order], counts_N[order], sums_ND[order])


def _add_to_sums(
    sums_ND: Floats,
    counts_N: npt.NDArray[np.int64],
    rows_T: npt.NDArray[np.int64],
    vectors_TD: Floats,
) -> None:
    """Add each token's vector to the row of its word."""
    order = np.argsort(rows_T, kind="stable")
    rows, starts, counts = np.unique(rows_T[order], return_index=True, return_counts=True)
    sums_ND[rows] += np.add.reduceat(vectors_TD[order], starts, axis=0)
    counts_N[rows] += counts


def export_word2vec(
    store: FeatureStore, out: Path, *, kind: Literal["mean", "layer_0"] = "mean"
) -> int:
    """Write a word2vec text file, which gensim's `KeyedVectors` reads; return the number of words.

    A word's vector is the mean over its occurrences or, with `kind="layer_0"`, its context-free
    one. Words come by falling count. A token that contains white space is left out, since the
    format cannot hold it.
    """
    static = static_vectors(store, kind=kind)
    kept = [i for i, word in enumerate(static.words) if word and not _spaced(word)]
    with new_file_if_absent(out) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(kept)} {static.vectors.shape[1]}\n")
        for start in range(0, len(kept), _ROWS):
            for i in kept[start : start + _ROWS]:
                numbers = " ".join(map(str, static.vectors[i]))
                file.write(f"{static.words[i]} {numbers}\n")
    return len(kept)


def _spaced(word: str) -> bool:
    return any(character.isspace() for character in word)
