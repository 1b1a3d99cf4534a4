"""Held-out perplexity: the full softmax, every prediction counted, both directions apart."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from elmo.adaptive import AnySoftmax, evaluate
from elmo.bilm import BiLM
from elmo.lstm import State
from elmo.stream import Window
from elmo.vocabulary import Vocabulary


@dataclass(frozen=True)
class Perplexity:
    """exp of the mean −log p of all predictions: the tokens and one boundary a sentence.

    `average` is the mean of both directions' perplexities, as in the paper. `unk_rate` is the share
    of tokens that are no word (they are predicted as `<UNK>`). `bits_per_byte` spreads the mean of
    both directions over the UTF-8 bytes of the tokens and one for each space or line end, so that
    it can be compared between tokenizers and vocabularies. `unigram` is the perplexity of the word
    counts alone on the same predictions, NaN where counts are unknown.
    """

    forward: float
    backward: float
    average: float
    tokens: int
    sentences: int
    unk_rate: float
    bits_per_byte: float
    unigram: float

    def to_dict(self) -> dict[str, float]:
        """All figures by name."""
        return asdict(self)


class Evaluator:
    """Reads windows with a model; totals add up over windows, and by `total` over workers."""

    def __init__(
        self,
        bilm: BiLM,
        softmax: AnySoftmax,
        vocabulary: Vocabulary,
        *,
        precision: torch.dtype,
        total: Callable[[Sequence[float]], list[float]] = list,
    ) -> None:
        self.bilm, self.softmax, self.vocabulary = bilm, softmax, vocabulary
        self.precision, self.total = precision, total
        self._unigram_SV = _unigram(vocabulary)

    def perplexity(
        self, windows: Iterable[Window], *, reset: bool, carry: bool = True
    ) -> Perplexity:
        """The perplexity over all windows, read in order, and over all workers' together.

        With `reset` false the state is carried over sentences, as in 2018; with `carry` false each
        window begins anew, and may have rows of its own.
        """
        totals = np.zeros(8)
        state: State | None = None
        for window in windows:
            nats_STB, state = self.nats(window, state if carry else None, reset=reset)
            totals += self._count(window, nats_STB)
        found = self.total(totals.tolist())
        forward, backward, count, sentences, unk, size, *unigrams = found
        each = [math.exp(nats / count) for nats in (forward, backward)]
        return Perplexity(
            forward=each[0],
            backward=each[1],
            average=sum(each) / 2,
            tokens=int(count - sentences),
            sentences=int(sentences),
            unk_rate=float(unk / max(1, count - sentences)),
            bits_per_byte=float((forward + backward) / 2 / math.log(2) / size),
            unigram=sum(math.exp(nats / count) for nats in unigrams) / 2,
        )

    @torch.no_grad()
    def nats(self, window: Window, state: State | None, *, reset: bool) -> tuple[Tensor, State]:
        """−log p of each prediction of a window (S, T, B), and the state after it."""
        device = next(self.softmax.parameters()).device
        if state is None:
            state = self.bilm.lstm.zero_state(window.index_STB.shape[2])
        types = torch.from_numpy(window.types_NK).to(device)
        x_NP = self.bilm.encode(types, precision=self.precision)
        starts_STB = torch.from_numpy(window.reset_TB).to(device).expand(2, -1, -1)
        x_STBP = x_NP[torch.from_numpy(window.index_STB).to(device)]
        ys, state = self.bilm.lstm(x_STBP, state, reset_STB=starts_STB if reset else None)
        targets = torch.from_numpy(window.targets_STB).to(device)
        h_NP = ys[-1].reshape(-1, ys[-1].shape[-1])
        nats_N = evaluate(self.softmax, h_NP, targets.reshape(-1))
        return nats_N.view(targets.shape), state

    def _count(self, window: Window, nats_STB: Tensor) -> np.ndarray:
        mask = torch.from_numpy(window.mask_TB).to(nats_STB.device)
        nats = (nats_STB.double() * mask).sum((1, 2)).cpu().numpy()
        targets = window.targets_STB[:, window.mask_TB]
        inputs = window.index_STB[0][window.mask_TB & ~window.reset_TB]
        unigram = -self._unigram_SV[[[0], [1]], targets].sum(1)
        starts = int((window.reset_TB & window.mask_TB).sum())
        sizes = (window.mask_TB.sum(), starts, (targets[0] == self.vocabulary.unk).sum())
        return np.array([*nats, *sizes, window.bytes_N[inputs].sum() + len(inputs), *unigram])


def _unigram(vocabulary: Vocabulary) -> np.ndarray:
    """log p of each word by its count, for forward targets (no `<S>`) and backward (no `</S>`)."""
    if vocabulary.counts is None:
        return np.full((2, len(vocabulary)), np.nan)
    counts = np.tile(np.maximum(np.array(vocabulary.counts, np.float64), 1), (2, 1))
    counts[0, vocabulary.bos] = counts[1, vocabulary.eos] = 0
    with np.errstate(divide="ignore"):
        return np.log(counts / counts.sum(1, keepdims=True))
