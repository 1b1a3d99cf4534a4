"""Perplexity under the full softmax, counting every prediction, with both directions separate.

It is computed for a split of shards, read as in training, or for sentences in memory, each read
alone.

Shapes: S directions, T time steps, B rows, N distinct tokens or predictions, K characters, P
projection, V words, n time steps of a block.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END, check_token_lists
from elmo.data.stream import Window, WindowStream, byte_lengths, lay_out_both_directions, prefetch
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.model.folder import Model
from elmo.nn.bilm import BiLM
from elmo.nn.device import (
    device_tensor,
    prefers_large_operations,
    round_up_rows,
    round_up_time_steps,
)
from elmo.nn.encoder import CharacterEncoder
from elmo.nn.lstm import LSTMState
from elmo.nn.softmax import Softmax, negative_log_likelihoods, restore_softmax
from elmo.settings import check_iterable

TOKENS_AT_ONCE = 4096
MIN_TIME_STEPS = 64  # time steps read at once, however many rows there are
TYPES_AT_ONCE = 8192  # distinct tokens to encode
BLOCK_TOKENS = 1 << 18  # tokens of the sentences sorted by length together
Item = TypeVar("Item")
OnWindow = Callable[[int, int], None]  # called with the tokens read so far, and those to read
MAX_NATS = 700  # exp of more overflows
MAX_HELDOUT_TOKENS = 200_000  # tokens measured, which gives an error of 0.6%


class NotFinite(ElmoError):
    """A perplexity or score is not finite: the weights are damaged, or training diverged."""


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text: exp of the mean −log p over its tokens and one boundary per
    sentence.

    `average` is the mean of both directions' perplexities, as in the paper. `unk_rate` is the share
    of unknown tokens, which count as `<UNK>`. `bits_per_byte` divides the mean bits of both
    directions by the UTF-8 bytes of the tokens plus one per space or line end, so it is comparable
    between tokenizers and vocabularies. `unigram` is the perplexity of word frequencies on the same
    predictions; NaN if counts are unknown.
    """

    forward: float
    backward: float
    average: float
    tokens: int
    sentences: int
    unk_rate: float
    bits_per_byte: float
    unigram: float

    def to_dict(self) -> dict[str, float | None]:
        """Return all figures by name, with None instead of NaN, which JSON does not have."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


class PerplexityEvaluator:
    """An evaluator of a model's perplexity over windows (batches of parallel rows of text).

    The network computes in `precision`. `sum_over_workers` sums figures element-wise over all
    workers; by default, there is one worker.
    """

    def __init__(
        self,
        bilm: BiLM,
        softmax: Softmax,
        vocabulary: Vocabulary,
        *,
        precision: torch.dtype,
        sum_over_workers: Callable[[Sequence[float]], list[float]] = list,
    ) -> None:
        self.bilm, self.softmax, self.vocabulary = bilm, softmax, vocabulary
        self.precision, self.sum_over_workers = precision, sum_over_workers
        self._unigram_SV = _unigram_log_p(vocabulary)

    def perplexity(
        self, windows: Iterable[Window], *, reset: bool, carry: bool = True
    ) -> Perplexity:
        """Return the perplexity over all windows of all workers; windows are read in order.

        With `reset`, the LSTM state is zeroed where a sentence begins; without, it is carried
        across sentences, as in 2018. With `carry=False`, each window starts from zeros, and the
        windows may have different numbers of rows.
        """
        totals = np.zeros(8)
        state: LSTMState | None = None
        for window in windows:
            nats_STB, state = self.nats_of_window(window, state if carry else None, reset=reset)
            totals += self._sum_window(window, nats_STB)
        sums = self.sum_over_workers(totals.tolist())
        forward_nats, backward_nats, count, sentences, unk_count, byte_count, *unigrams = sums
        if not max(forward_nats, backward_nats) <= MAX_NATS * count:
            raise NotFinite(
                "the perplexity is not a finite number: the model's weights are damaged, or its "
                "training diverged"
            )
        perplexities = [math.exp(nats / count) for nats in (forward_nats, backward_nats)]
        return Perplexity(
            forward=perplexities[0],
            backward=perplexities[1],
            average=sum(perplexities) / 2,
            tokens=int(count - sentences),
            sentences=int(sentences),
            unk_rate=float(unk_count / max(1, count - sentences)),
            bits_per_byte=float((forward_nats + backward_nats) / 2 / math.log(2) / byte_count),
            unigram=sum(math.exp(nats / count) for nats in unigrams) / 2,
        )

    @torch.no_grad()
    def nats_of_window(
        self, window: Window, state: LSTMState | None, *, reset: bool
    ) -> tuple[Tensor, LSTMState]:
        """Return −log p, in nats, of each prediction of a window, and the LSTM state after it.

        The shape is (directions, time steps, rows). `state` is the state before the window (None:
        zeros); with `reset`, it is zeroed where a sentence begins. Long rows are read in slices, to
        save memory.
        """
        device = next(self.softmax.parameters()).device
        index_STB, targets_STB = window.index_STB, window.targets_STB
        _, T, B = index_STB.shape
        if state is None:
            state = self.bilm.lstm.zero_state(B)
        x_NP = self._encode(window.characters_NK, device)
        starts_STB = device_tensor(window.reset_TB, device).expand(2, -1, -1)
        nats = []
        time_steps = max(MIN_TIME_STEPS, TOKENS_AT_ONCE // B)
        for time_slice in (slice(start, start + time_steps) for start in range(0, T, time_steps)):
            x_STBP = x_NP[device_tensor(index_STB[:, time_slice], device)]
            reset_STB = starts_STB[:, time_slice] if reset else None
            layer_outputs, state = self.bilm.lstm(x_STBP, state, reset_STB=reset_STB)
            target_STB = device_tensor(targets_STB[:, time_slice], device)
            h_NP = layer_outputs[-1].reshape(-1, layer_outputs[-1].shape[-1])
            nats_N = negative_log_likelihoods(self.softmax, h_NP, target_STB.reshape(-1))
            nats.append(nats_N.view(target_STB.shape))
        return torch.cat(nats, 1), state

    def _encode(self, characters_NK: np.ndarray, device: torch.device) -> Tensor:
        """Return the vectors of distinct tokens (N, P), padded on a GPU."""
        encoder = self.bilm.encoder
        if prefers_large_operations(device) and isinstance(encoder, CharacterEncoder):
            characters_NK = encoder.pad_to_few_shapes(characters_NK)
        chunks = torch.split(device_tensor(characters_NK, device), TYPES_AT_ONCE)
        return torch.cat([self.bilm.encode(chunk, precision=self.precision) for chunk in chunks])

    def _sum_window(self, window: Window, nats_STB: Tensor) -> np.ndarray:
        mask_TB = torch.from_numpy(window.mask_TB).to(nats_STB.device)
        nats = (nats_STB.double() * mask_TB).sum((1, 2)).cpu().numpy()
        targets_SN = window.targets_STB[:, window.mask_TB]
        inputs = window.index_STB[0][window.mask_TB & ~window.reset_TB]
        unigram_nats = -self._unigram_SV[[[0], [1]], targets_SN].sum(1)
        sentences = int((window.reset_TB & window.mask_TB).sum())
        counts = (window.mask_TB.sum(), sentences, (targets_SN[0] == self.vocabulary.unk).sum())
        return np.array([*nats, *counts, window.bytes_N[inputs].sum() + len(inputs), *unigram_nats])


@dataclass(frozen=True)
class HeldOutText:
    """The held-out text of a training, on which perplexity is evaluated repeatedly.

    With `reset`, the LSTM state is zeroed where a sentence begins; `on_window` is called before
    each window.
    """

    stream: WindowStream
    evaluator: PerplexityEvaluator
    reset: bool
    on_window: OnWindow

    def perplexity(
        self, *, tokens: int = 0, is_interrupted: Callable[[], bool] | None = None
    ) -> tuple[Perplexity, bool]:
        """Return the perplexity of about `tokens` tokens (0: all), and whether these are all. Of a
        long text, about `MAX_HELDOUT_TOKENS` tokens count as all.

        Each row reads its part from the beginning, so the tokens are spread over the text.
        `is_interrupted` is called once per window; if it returns true, `KeyboardInterrupt` is
        raised.
        """
        limit = min(tokens or MAX_HELDOUT_TOKENS, MAX_HELDOUT_TOKENS)
        is_whole_text = True

        def windows() -> Iterator[Window]:
            nonlocal is_whole_text
            tokens_read = 0
            total = min(limit, sum(entry.tokens for entry in self.stream.entries))
            with closing(prefetch(self.stream.windows(self.stream.first_position()))) as items:
                for window, _ in items:
                    self.on_window(min(tokens_read, total), total)  # without sentence ends
                    if limit <= tokens_read:
                        is_whole_text = limit == MAX_HELDOUT_TOKENS
                        return
                    tokens_read += window.count // 2
                    if is_interrupted is not None and is_interrupted():
                        raise KeyboardInterrupt
                    yield window

        return self.evaluator.perplexity(windows(), reset=self.reset), is_whole_text


class SentenceScore(NamedTuple):
    """The −log p of a sentence in nats, per direction, summed over its tokens and one boundary."""

    forward: float
    backward: float


def perplexity(model: Model, sentences: Iterable[Sequence[str]]) -> Perplexity:
    """Return the perplexity of sentences, given as token lists, each read alone; empty ones are
    skipped.

    Memory does not grow with their number.
    """
    windows = (
        window
        for block in token_blocks(check_iterable("sentences", sentences), len)
        for _, window in _make_windows(model, block)
    )
    first_window = next(windows, None)
    if first_window is None:
        raise ElmoError("the text has no tokens, so it has no perplexity")
    return make_evaluator(model).perplexity(chain([first_window], windows), reset=True, carry=False)


def token_blocks(items: Iterable[Item], tokens: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group items into lists of about `BLOCK_TOKENS` tokens; `tokens` counts those of an item.

    This is enough for sorting by length to pay off, and bounds the memory.
    """
    block: list[Item] = []
    total = 0
    for item in items:
        block.append(item)
        total += tokens(item) + 1  # an empty item counts too
        if total >= BLOCK_TOKENS:
            yield block
            block, total = [], 0
    if block:
        yield block


def sentence_scores(
    model: Model,
    sentences: Sequence[Sequence[str]],
    *,
    evaluator: PerplexityEvaluator | None = None,
) -> list[SentenceScore]:
    """Return the −log p of each sentence in both directions; it is 0 for an empty sentence.

    Pass `make_evaluator(model)` as `evaluator` if you call this for many blocks of text.
    """
    scores = [SentenceScore(0.0, 0.0)] * len(sentences)
    evaluator = evaluator or make_evaluator(model)
    for rows, window in _make_windows(model, sentences):
        nats_STB, _ = evaluator.nats_of_window(window, None, reset=True)
        mask_TB = torch.from_numpy(window.mask_TB)
        forward, backward = (nats_STB.cpu().double() * mask_TB).sum(1)[:, : len(rows)].tolist()
        for row, *nats in zip(rows, forward, backward, strict=True):
            scores[row] = SentenceScore(*nats)
    if not np.isfinite(scores).all():
        raise NotFinite("a score is not a finite number: the model's weights are damaged")
    return scores


def make_evaluator(model: Model) -> PerplexityEvaluator:
    """Return an evaluator of a model in float32; raise `ElmoError` if the model has no softmax."""
    if model.softmax is None:
        raise ElmoError("the model has no softmax (2018 files have none); fine-tune it to get one")
    return PerplexityEvaluator(
        model.bilm,
        restore_softmax(model.softmax).to(model.bilm.lstm.weight[0].device),
        model.vocabulary,
        precision=torch.float32,
    )


def _make_windows(
    model: Model, sentences: Sequence[Sequence[str]]
) -> Iterator[tuple[list[int], Window]]:
    """Yield batches of sentences of similar length, each a window whose rows start from zeros."""
    check_token_lists(sentences)
    order = sorted((k for k, s in enumerate(sentences) if s), key=lambda k: -len(sentences[k]))
    while order:
        rows = order[: max(1, TOKENS_AT_ONCE // (len(sentences[order[0]]) + 1))]
        order = order[len(rows) :]
        yield rows, _make_window(model, [sentences[row] for row in rows])


def _make_window(model: Model, sentences: list[Sequence[str]]) -> Window:
    vocabulary = model.vocabulary
    types: dict[str, int] = {}
    time_steps, rows = max(map(len, sentences)) + 1, len(sentences)
    if prefers_large_operations(
        model.bilm.lstm.weight[0].device
    ):  # shapes that repeat are captured
        time_steps, rows = round_up_time_steps(time_steps), round_up_rows(rows)
    index_STB = np.zeros((2, time_steps, rows), np.int64)
    targets_STB = np.zeros((2, time_steps, rows), np.int64)
    mask_TB = np.zeros((time_steps, rows), bool)
    boundaries = [types.setdefault(word, len(types)) for word in (SENTENCE_BEGIN, SENTENCE_END)]
    for row, sentence in enumerate(sentences):
        keys = np.array([types.setdefault(token, len(types)) for token in sentence], np.int64)
        words = vocabulary.ids(sentence).astype(np.int64)
        lengths = np.array([len(sentence)])
        block = lay_out_both_directions(keys, words, lengths, vocabulary)
        steps = len(sentence) + 1
        index_STB[:, :steps, row], targets_STB[:, :steps, row] = block.keys_Sn, block.words_Sn
        index_STB[0, 0, row], index_STB[1, 0, row] = boundaries
        mask_TB[:steps, row] = True
    starts_TB = np.zeros_like(mask_TB)
    starts_TB[0] = True
    return Window(
        index_STB,
        targets_STB,
        mask_TB,
        starts_TB,
        model.encoder_input(list(types)),
        byte_lengths(list(types)),
        words=np.unique(targets_STB[:, mask_TB]),
        count=2 * int(mask_TB.sum()),
    )


def _unigram_log_p(vocabulary: Vocabulary) -> np.ndarray:
    """Return log p of each word by its count, for forward targets (never `<S>`) and backward
    targets (never `</S>`). If the text itself has one of these two, it counts as one occurrence."""
    if vocabulary.counts is None:
        return np.full((2, len(vocabulary)), np.nan)
    counts_SV = np.tile(np.maximum(np.array(vocabulary.counts, np.float64), 1), (2, 1))
    counts_SV[0, vocabulary.bos] = counts_SV[1, vocabulary.eos] = 0
    return np.log(np.maximum(counts_SV, 1) / counts_SV.sum(1, keepdims=True))
