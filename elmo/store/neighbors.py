"""Nearest contextual neighbours: the tokens of a store that are used most similarly to a given one.

Shapes: L layers, T tokens of a block, N tokens of different sentences, D the width of a vector.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.data.arrays import Floats
from elmo.data.characters import check_token_lists
from elmo.data.tokenizer import NOT_TEXT_MESSAGE, is_text, to_nfc
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder
from elmo.settings import check_count, check_instance, is_whole_number
from elmo.store import FeatureStore
from elmo.store.layout import layer_number
from elmo.store.reader import VectorBlock

Tokens = tuple[str, ...]
Candidate = tuple[float, int, int]  # −cosine, the sentence's id, the token's position
_SAMPLED_SENTENCES = 300  # estimate the mean cosine of unrelated tokens
_CONTEXT_TOKENS = 8  # tokens shown on either side of a token


@dataclass(frozen=True)
class Neighbor:
    """A token found by `neighbors`: its cosine with the query, its document, its sentence and its
    position in the sentence. `tokens` are the sentence's tokens; `record` has the kept columns of
    its record (`FeatureStore.record`)."""

    cosine: float
    document_id: int
    sentence_id: int
    position: int
    tokens: list[str]
    record: dict[str, Any] = field(default_factory=dict)

    def context(self) -> str:
        """Return the tokens around this one as text, with this token in brackets."""
        text_before, token, text_after = split_around(self.tokens, self.position)
        return f"{text_before}[{token}]{text_after}"


def split_around(tokens: Sequence[str], position: int) -> tuple[str, str, str]:
    """Return the text before a token, the token, and the text after it: up to 8 tokens on either
    side, and `…` if there are more."""
    start, stop = max(0, position - _CONTEXT_TOKENS), position + _CONTEXT_TOKENS + 1
    tokens_before = ["…"] * (start > 0) + [*tokens[start:position]]
    tokens_after = [*tokens[position + 1 : stop]] + ["…"] * (stop < len(tokens))
    return (
        "".join(f"{token} " for token in tokens_before),
        tokens[position],
        "".join(f" {token}" for token in tokens_after),
    )


def parse_query(
    text: str, *, tokenize: Callable[[str], list[list[str]]] = lambda text: [text.split()]
) -> tuple[list[str], int]:
    """Return the tokens of a text such as `He has a [gift] for music`, and the bracketed token's
    index.

    `tokenize` splits the text without brackets into sentences, because the context may affect how a
    token is split; the sentence that had the brackets is returned. Raises `ElmoError` unless
    exactly one token is in brackets.
    """
    if not isinstance(text, str):
        raise ElmoError(f"the text must be a string with one token in brackets, found {text!r:.80}")
    if not is_text(text):
        raise ElmoError(f"the text {text!r} {NOT_TEXT_MESSAGE}")
    words = re.findall(r"\[([^\[\]\s]+)\]", text) or re.findall(r"\[([^\[\]]+)\]", text)
    if len(words) != 1:
        raise ElmoError(
            'the text must have one token in brackets, as in "He has a [gift] for music"; '
            f"found {len(words)} in {text!r}"
        )
    (word,) = words
    text_before, text_after = text.split(f"[{word}]")
    sentence = text_before + word + text_after
    word_start, word_stop, token_end = len(text_before), len(text_before) + len(word), 0
    overlaps = []
    for tokens in tokenize(sentence):
        for index, token in enumerate(tokens):
            token_start = sentence.find(token, token_end)
            if token_start < 0:  # the tokenizer has composed characters, like `to_nfc`
                if (composed_text := to_nfc(text)) == text:
                    raise ElmoError(f"the tokenizer returns {token!r}, which is not in {text!r}")
                return parse_query(composed_text, tokenize=tokenize)
            token_end = token_start + len(token)
            if (token_start, token_end) == (word_start, word_stop):
                return tokens, index
            if token_start < word_stop and token_end > word_start:
                overlaps.append(token)
    raise ElmoError(
        f"[{word}] is not one token: the model's tokenizer splits {' '.join(overlaps)!r} there; "
        "put one of these in brackets"
    )


def neighbors(
    store: FeatureStore,
    embedder: Embedder,
    tokens: Sequence[str],
    position: int,
    *,
    k: int = 10,
    layer: int | str | None = None,
    split: str | None = None,
    same_word: bool = False,
) -> list[Neighbor]:
    """Return the k tokens of the store nearest by cosine to `tokens[position]`, nearest first.

    They are from k different sentences, none of them equal to the query; with `split` (`train` or
    `heldout`), only from that split. With `same_word`, only occurrences of the same word are
    compared, ignoring case. `layer` is a layer's number or name (default: the mean of the stored
    layers). The whole store is read.
    """
    check_instance("store", store, FeatureStore)
    check_instance("embedder", embedder, Embedder)
    check_count("k", k)
    check_token_lists([tokens])
    if not is_whole_number(position) or not 0 <= position < len(tokens):
        raise ElmoError(f"position must be from 0 to {len(tokens) - 1}, found {position}")
    store.check_model(embedder.model.digest)
    names = select_compared_layers(store, layer)
    layer_numbers = [layer_number(name) for name in names]
    query_D = embedder.embed([tokens])[0][layer_numbers, position].mean(0)
    query_D /= max(float(np.linalg.norm(query_D)), 1e-12)
    nearest = NearestSentences(k)
    for part_number in store.part_numbers(split):
        part = store.part(part_number)
        types = part.types.tokens
        allowed_type_ids = _find_types(types, tokens[position]) if same_word else None
        for block in part.blocks(names):
            if len(block.type_ids):
                cosine_T = _compute_cosines(block.vectors, query_D)
                if allowed_type_ids is not None:
                    cosine_T[~np.isin(block.type_ids, allowed_type_ids)] = -np.inf
                _add_nearest(nearest, block, cosine_T, types, tuple(tokens))
    return [
        Neighbor(
            -negated_cosine,
            store.document(sentence_id),
            sentence_id,
            index,
            list(text),
            store.record(sentence_id),
        )
        for text, (negated_cosine, sentence_id, index) in nearest.candidates()
    ]


def random_cosine(store: FeatureStore, layer: int | str | None = None) -> float:
    """Return the mean cosine of unrelated tokens of the store, for judging the cosines of
    neighbours.

    It reads one token of each of up to 300 sentences; the result is NaN if fewer than two have
    tokens. `layer` is a layer's number or name (default: the mean of the stored layers).
    """
    names = select_compared_layers(store, layer)
    vectors = []
    for k in range(0, len(store), len(store) // _SAMPLED_SENTENCES + 1):
        vectors_LTD = store.vectors(k, layers=names)
        if tokens := vectors_LTD.shape[1]:
            vectors.append(vectors_LTD.mean(0)[k % tokens])
    if len(vectors) < 2:
        return float("nan")
    unit_ND = np.stack([v_D / max(float(np.linalg.norm(v_D)), 1e-12) for v_D in vectors])
    sum_D, count = unit_ND.sum(0), len(unit_ND)
    return float((sum_D @ sum_D - count) / (count * (count - 1)))


def most_distinct_layer(store: FeatureStore) -> int | None:
    """Return the number of the contextual layer with the lowest `random_cosine`, in which
    neighbours stand out most; None if no contextual layer is stored."""
    numbers = filter(None, map(layer_number, store.layers))
    return min(numbers, key=lambda number: random_cosine(store, number), default=None)


class NearestSentences:
    """The k nearest distinct sentences so far, each with its nearest token."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._candidates: dict[Tokens, Candidate] = {}
        self.farthest_candidate: Candidate = (np.inf, 0, 0)  # no later candidate can be among the k

    def add(self, tokens: Tokens, candidate: Candidate) -> None:
        """Add a sentence. Of equal sentences, the nearest is kept; if equally near, the first.

        `candidate` is −cosine, the sentence's id and the position of its nearest token.
        """
        self._candidates[tokens] = min(candidate, self._candidates.get(tokens, candidate))
        if len(self._candidates) >= 2 * self._k:
            self._trim_candidates()

    def _trim_candidates(self) -> None:
        closest = sorted(self._candidates.items(), key=lambda item: item[1])[: self._k]
        self._candidates = dict(closest)
        if len(closest) == self._k:
            self.farthest_candidate = closest[-1][1]

    def candidates(self) -> list[tuple[Tokens, Candidate]]:
        """Return the sentences, nearest first; equally near ones in the order of the store."""
        self._trim_candidates()
        return [*self._candidates.items()]


def _add_nearest(
    sentences: NearestSentences,
    block: VectorBlock,
    cosine_T: npt.NDArray[np.float32],
    types: pa.StringArray,
    excluded_text: Tokens,
) -> None:
    """Add the sentences of a block that have a token with a cosine above −∞, except
    `excluded_text`."""
    rows = np.flatnonzero(np.diff(block.offsets))
    best_cosines = np.maximum.reduceat(cosine_T, block.offsets[rows])
    for row in rows[(best_cosines >= -sentences.farthest_candidate[0]) & (best_cosines > -np.inf)]:
        start, stop = block.offsets[row], block.offsets[row + 1]
        tokens = tuple(types.take(pa.array(block.type_ids[start:stop])).to_pylist())
        if tokens != excluded_text:
            position = int(np.argmax(cosine_T[start:stop]))
            candidate = -float(cosine_T[start + position]), int(block.sentence_ids[row]), position
            sentences.add(tokens, candidate)


def _find_types(types: pa.StringArray, word: str) -> npt.NDArray[np.int64]:
    """Return the ids of a part's types that equal a word, ignoring case."""
    is_equal = pc.equal(pc.utf8_lower(types), pc.utf8_lower(pa.scalar(word)))
    return np.flatnonzero(is_equal.to_numpy(zero_copy_only=False))


def select_compared_layers(store: FeatureStore, layer: int | str | None) -> tuple[str, ...]:
    """Return the names of the stored layers whose mean is compared: only `layer`, a number or name,
    or all if it is None or `average`."""
    if layer in (None, "average"):
        return store.layers
    return store._select_layers([layer], candidates=store.layers)


def _compute_cosines(vectors_LTD: Floats, query_D: Floats) -> npt.NDArray[np.float32]:
    mean_TD = vectors_LTD[0] if len(vectors_LTD) == 1 else vectors_LTD.mean(0)
    norm_T = np.sqrt(np.einsum("td,td->t", mean_TD, mean_TD))
    # Not BLAS: its sums depend on a row's position, but equal vectors must have equal cosines.
    dot_T = np.einsum("td,d->t", mean_TD, query_D)
    return np.asarray(dot_T / np.maximum(norm_T, 1e-12), np.float32)
