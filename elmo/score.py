"""Perplexity and scores of sentences in memory: the full softmax, each sentence read alone."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from elmo.adaptive import softmax_from
from elmo.checkpoint import Model
from elmo.errors import ElmoError
from elmo.evaluation import Evaluator, Perplexity
from elmo.stream import Window, both_ways, byte_lengths

TOKENS = 4096


class Score(NamedTuple):
    """−log p of a sentence in nats, each way, summed over its tokens and its boundary."""

    forward: float
    backward: float


def perplexity(model: Model, sentences: Sequence[Sequence[str]]) -> Perplexity:
    """The perplexity of sentences, each read alone; empty ones are left out."""
    windows = [window for _, window in _windows(model, sentences)]
    if not windows:
        raise ElmoError("there are no tokens to take the perplexity of")
    return _evaluator(model).perplexity(windows, reset=True, carry=False)


def scores(model: Model, sentences: Sequence[Sequence[str]]) -> list[Score]:
    """Score each sentence; an empty one scores 0."""
    found = [Score(0.0, 0.0)] * len(sentences)
    evaluator = _evaluator(model)
    for rows, window in _windows(model, sentences):
        nats_STB, _ = evaluator.nats(window, None, reset=True)
        mask = torch.from_numpy(window.mask_TB)
        forward, backward = (nats_STB.cpu().double() * mask).sum(1).tolist()
        for row, *both in zip(rows, forward, backward, strict=True):
            found[row] = Score(*both)
    return found


def _evaluator(model: Model) -> Evaluator:
    if model.softmax is None:
        raise ElmoError("the model has no softmax (2018 files have none); fine-tune it to get one")
    return Evaluator(
        model.bilm,
        softmax_from(model.softmax),
        model.vocabulary,
        precision=torch.float32,
    )


def _windows(
    model: Model, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[list[int], Window]]:
    """Batches of sentences of like length, each batch one window that begins anew in every row."""
    order = sorted((k for k, s in enumerate(sentences) if s), key=lambda k: -len(sentences[k]))
    at = 0
    while at < len(order):
        rows = order[at : at + max(1, TOKENS // (len(sentences[order[at]]) + 1))]
        at += len(rows)
        yield rows, _window(model, [sentences[row] for row in rows])


def _window(model: Model, sentences: list[Sequence[str]]) -> Window:
    vocabulary = model.vocabulary
    types: dict[str, int] = {}
    steps = max(map(len, sentences)) + 1
    index = np.zeros((2, steps, len(sentences)), np.int64)
    targets = np.zeros((2, steps, len(sentences)), np.int64)
    mask = np.zeros((steps, len(sentences)), bool)
    boundaries = [types.setdefault(word, len(types)) for word in ("<S>", "</S>")]
    for row, sentence in enumerate(sentences):
        keys = np.array([types.setdefault(token, len(types)) for token in sentence], np.int64)
        words = vocabulary.ids(sentence).astype(np.int64)
        length = np.array([len(sentence)])
        block = both_ways(keys, words, length, vocabulary)
        n = len(sentence) + 1
        index[:, :n, row], targets[:, :n, row] = block.keys_Sn, block.words_Sn
        index[0, 0, row], index[1, 0, row] = boundaries
        mask[:n, row] = True
    starts = np.zeros_like(mask)
    starts[0] = True
    encoded = model.inputs(list(types))
    words_used = np.unique(targets[:, mask])
    size = byte_lengths(list(types))
    return Window(index, targets, mask, starts, encoded, size, words_used, 2 * int(mask.sum()))
