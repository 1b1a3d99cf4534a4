"""Nearest contextual neighbours: which tokens of a store are used as this one is.

Shapes: T tokens of a block, D the width of a vector.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.features import FeatureStore
from elmo.store_layout import Floats

_MERGED = 64  # blocks whose nearest are kept until they are compared


@dataclass(frozen=True)
class Neighbor:
    """A token of the store: its cosine to the query, and where it stands."""

    cosine: float
    sentence_id: int
    place: int
    tokens: list[str]

    def marked(self) -> str:
        """Its sentence, with the token in brackets."""
        tokens = list(self.tokens)
        tokens[self.place] = f"[{tokens[self.place]}]"
        return " ".join(tokens)


def parse_query(
    text: str, *, tokenize: Callable[[str], list[str]] = str.split
) -> tuple[list[str], int]:
    """The tokens of `He has a [gift] for music` and the place of the bracketed one.

    What stands before and after the brackets goes through `tokenize`.
    """
    found = re.findall(r"\[([^\[\]\s]+)\]", text)
    if len(found) != 1:
        raise ElmoError(
            'the text must have one token in brackets, as in "He has a [gift] for music"; '
            f"found {len(found)} in {text!r}"
        )
    before, after = text.split(f"[{found[0]}]")
    tokens = tokenize(before)
    return [*tokens, found[0], *tokenize(after)], len(tokens)


def neighbors(
    store: FeatureStore,
    embedder: Embedder,
    tokens: Sequence[str],
    place: int,
    *,
    k: int = 10,
    layer: int | str | None = None,
    split: str | None = None,
) -> list[Neighbor]:
    """The k tokens of the store nearest by cosine to `tokens[place]`.

    `layer` is a layer's number; by default the mean of the stored layers is compared. A sentence
    equal to the query or to a nearer one is left out. Reads the whole store once.
    """
    if k < 1:
        raise ElmoError(f"k must be 1 or more, found {k}")
    kept = 8 * k + 64
    if store.manifest["model"]["digest"] != embedder.model.digest:
        made = store.manifest["model"]["digest"]
        raise ElmoError(
            f"{store.path}: was made by model {made[:12]}…, not by "
            f"{embedder.model.digest[:12]}…; use the model it was made with"
        )
    names = _layers(store, layer)
    query_D = _query(embedder.embed([list(tokens)])[0][:, place], store, names)
    scores: list[npt.NDArray[np.float32]] = []
    places: list[npt.NDArray[np.int64]] = []
    for block in store.blocks(split=split, layers=names):
        cosine_T = _cosine(block.vectors, query_D)
        best = np.argsort(-cosine_T, kind="stable")[:kept]
        sentence = np.searchsorted(block.offsets, best, side="right") - 1
        scores.append(cosine_T[best])
        places.append(np.stack([block.sentence_ids[sentence], best - block.offsets[sentence]], 1))
        if len(scores) == _MERGED:
            scores, places = _best(scores, places, kept)
    if scores:
        scores, places = _best(scores, places, kept)
    return _named(store, scores, places, list(tokens), k)


def _layers(store: FeatureStore, layer: int | str | None) -> tuple[str, ...]:
    if layer in (None, "average"):
        return store.layers
    return (layer if isinstance(layer, str) else f"layer_{layer}",)


def _query(vectors_LD: Floats, store: FeatureStore, names: tuple[str, ...]) -> Floats:
    """The query as the store would keep it, averaged over `names`, of length 1."""
    layout = store.layout
    if names == ("average",):
        found_D = vectors_LD.mean(0)
    elif names == ("mix",):
        assert layout.mix is not None
        found_D = np.asarray(layout.mix.weights, np.float32) @ vectors_LD
    else:
        for name in names:
            if name not in layout.layers:
                raise ElmoError(f"{store.path}: has no {name}; it holds {', '.join(layout.layers)}")
        found_D = vectors_LD[[int(name.removeprefix("layer_")) for name in names]].mean(0)
    return np.asarray(found_D / max(float(np.linalg.norm(found_D)), 1e-12), np.float32)


def _cosine(vectors_LTD: Floats, query_D: Floats) -> npt.NDArray[np.float32]:
    mean_TD = vectors_LTD[0] if len(vectors_LTD) == 1 else vectors_LTD.mean(0)
    norm_T = np.sqrt(np.einsum("td,td->t", mean_TD, mean_TD))
    return np.asarray(mean_TD @ query_D / np.maximum(norm_T, 1e-12), np.float32)


def _best(
    scores: list[npt.NDArray[np.float32]], places: list[npt.NDArray[np.int64]], k: int
) -> tuple[list[npt.NDArray[np.float32]], list[npt.NDArray[np.int64]]]:
    every, where = np.concatenate(scores), np.concatenate(places)
    best = np.lexsort((where[:, 1], where[:, 0], -every))[:k]
    return [every[best]], [where[best]]


def _named(
    store: FeatureStore,
    scores: list[npt.NDArray[np.float32]],
    places: list[npt.NDArray[np.int64]],
    query: list[str],
    k: int,
) -> list[Neighbor]:
    found: list[Neighbor] = []
    seen = [query]
    if scores:
        for cosine, (sentence_id, place) in zip(scores[0], places[0], strict=True):
            tokens = store.tokens(int(sentence_id))
            if tokens not in seen and len(found) < k:
                seen.append(tokens)
                found.append(Neighbor(float(cosine), int(sentence_id), int(place), tokens))
    return found
