"""Search for the sentences of a store that are nearest to a text, by exact cosine similarity.

Sentences are compared by the means of their tokens' vectors.

Shapes: L layers, S sentences, T tokens of a block, D the width of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.store import FeatureStore
from elmo.store.neighbors import Nearest, check_model, layer_choice, query_of
from elmo.store.reader import VectorBlock

_SENTENCES = 4096  # sentences compared with the query at a time


@dataclass(frozen=True)
class Hit:
    """A sentence found by `search`: its cosine with the text, its id and its tokens."""

    cosine: float
    sentence_id: int
    tokens: list[str]


def search(
    store: FeatureStore,
    embedder: Embedder,
    sentences: Sequence[Sequence[str]],
    *,
    k: int = 10,
    layer: int | str | None = None,
    split: str | None = None,
) -> list[Hit]:
    """Return the k sentences of the store that are nearest to a text by cosine, nearest first.

    `sentences` are the token lists of the text. The vectors compared are means over tokens, of
    `layer` (a number or name) or by default of the mean of all stored layers. `split` is `train` or
    `heldout` (default: both). Equal sentences are listed once. The whole store is read.
    """
    if k < 1:
        raise ElmoError(f"k must be 1 or more, found {k}")
    check_model(store, embedder)
    names = layer_choice(store, layer)
    tokens = [list(one) for one in sentences if one]
    if not tokens:
        raise ElmoError("the text has no tokens; write some words")
    vectors_LTD = np.concatenate(embedder.embed(tokens), axis=1)
    query_D = query_of(vectors_LTD.mean(1), store, names)
    nearest = Nearest(k)
    ids: list[npt.NDArray[np.int64]] = []
    means: list[Floats] = []
    for number in store.numbers(split):
        for block in store.part(number).blocks(names):
            own_ids, mean_SD = _means(block)
            ids.append(own_ids)
            means.append(mean_SD)
            if sum(map(len, ids)) >= _SENTENCES:
                add_nearest(nearest, store, np.concatenate(ids), np.concatenate(means), query_D)
                ids, means = [], []
    if ids:
        add_nearest(nearest, store, np.concatenate(ids), np.concatenate(means), query_D)
    return [Hit(one.cosine, one.sentence_id, one.tokens) for one in nearest.neighbors()]


def _means(block: VectorBlock) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the ids of a block's non-empty sentences, and the means of their tokens' vectors (S,
    D)."""
    lengths = np.diff(block.offsets)
    rows = np.flatnonzero(lengths)
    if not len(rows):
        return block.sentence_ids[:0], np.empty((0, block.vectors.shape[2]), np.float32)
    mean_TD = block.vectors[0] if len(block.vectors) == 1 else block.vectors.mean(0)
    sums_SD = np.add.reduceat(mean_TD, block.offsets[rows], axis=0)
    return block.sentence_ids[rows], np.asarray(sums_SD / lengths[rows, None], np.float32)


def add_nearest(
    nearest: Nearest,
    store: FeatureStore,
    ids: npt.NDArray[np.int64],
    mean_SD: Floats,
    query_D: Floats,
) -> None:
    """Add to `nearest`, the nearest sentences so far, those of S more sentences that may be among
    them.

    `ids` and `mean_SD` are the sentences' ids and mean vectors; `query_D` is from `query_of`.
    Tokens are read of those sentences alone that may be among the nearest.
    """
    norm_S = np.maximum(np.sqrt(np.einsum("sd,sd->s", mean_SD, mean_SD)), 1e-12)
    # Not by BLAS, whose sums depend on a row's position: equal sentences have equal cosines.
    cosine_S = np.einsum("sd,d->s", mean_SD, query_D) / norm_S
    for index in np.lexsort((ids, -cosine_S)):
        candidate = -float(cosine_S[index]), int(ids[index]), 0
        if candidate > nearest.last:
            break
        nearest.add(tuple(store.tokens(candidate[1])), candidate)
