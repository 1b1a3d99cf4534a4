"""The softmax over words, shared by both directions: its parameters, loss and evaluation.

Loss and gradients are computed together, one chunk of predictions at a time, so predictions × words
values are never stored; an evaluation also divides the words into blocks. The sampled loss is
TensorFlow's: log-uniform candidates without repetition, accidental hits removed, log expected
counts subtracted.

Shapes: N predictions, n predictions of a chunk, P projection, V words, U used rows of the word
matrix, M candidates or words of a block, H predictions whose target is a candidate.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmo.data.arrays import index_table
from elmo.nn.cell import fuse_on_gpu
from elmo.nn.device import add_rows_, device_tensor, host_tensor, prefers_large_operations
from elmo.nn.products import product

CHUNK_LOGITS = 1 << 20  # 4 MB, which fit a CPU's cache
GPU_CHUNK_LOGITS = 1 << 26  # 256 MB, for few large launches
MIN_CHUNK_PREDICTIONS = 64  # with fewer, reading the word matrix takes most of the time
PREDICTIONS_AT_ONCE = 1024  # predictions evaluated at a time


class Softmax(nn.Module):
    """The parameters of the softmax that predicts words, shared by both directions: a vector
    (words, projection) and a bias (words,) for each word."""

    def __init__(self, word_count: int, projection: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(word_count, projection))
        self.bias = nn.Parameter(torch.zeros(word_count))

    def reset_parameters(self, seed: int) -> None:
        """Initialise the weights from a seed, with the distributions of bilm-tf."""
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.weight, 0, self.weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.bias)


def new_softmax(word_count: int, projection: int, *, seed: int) -> Softmax:
    """Return a softmax over `word_count` words, for output vectors of width `projection`, with
    weights newly initialised from `seed`."""
    softmax = Softmax(word_count, projection)
    softmax.reset_parameters(seed)
    return softmax


def restore_softmax(
    state: dict[str, Tensor], *, word_count: int | None = None, seed: int = 0
) -> Softmax:
    """Return a softmax with saved weights: `state` has `weight` (words, projection) and `bias`
    (words). If `word_count` is larger than the number of saved words, rows are added and
    initialised from `seed`."""
    saved_words, projection = state["weight"].shape
    softmax = new_softmax(saved_words if word_count is None else word_count, projection, seed=seed)
    with torch.no_grad():
        for name, parameter in softmax.named_parameters():
            parameter[:saved_words] = state[name]
    return softmax


class SampledWords(NamedTuple):
    """A sorted sample of distinct word ids, with which a sampled softmax compares each target. It
    took `tries` draws from `word_count` words."""

    words: npt.NDArray[np.int64]
    tries: int
    word_count: int

    def log_expected_counts(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return for each word id the log of its expected count in such a sample, float32. The
        sampled softmax subtracts it from the word's logit, because frequent words are drawn more
        often.

        It is log(−expm1(tries · log1p(−p))), with the log-uniform probability p = log((w + 2) / (w
        + 1)) / log(V + 1) of word w among V.
        """
        rejections = _log_rejections(self.word_count)[words]
        return np.log(-np.expm1(self.tries * rejections)).astype(np.float32)


@lru_cache(maxsize=2)
def _log_rejections(word_count: int) -> npt.NDArray[np.float64]:
    """Return for each word the log of the probability that a draw is another word."""
    words = np.arange(word_count)
    probabilities = (np.log(words + 2.0) - np.log(words + 1.0)) / np.log(word_count + 1.0)
    return np.log1p(-probabilities)


def sample_candidates(count: int, word_count: int, rng: np.random.Generator) -> SampledWords:
    """Draw word ids for the sampled softmax until `count` of them are distinct. Frequent words are
    drawn more often (log-uniformly): the `word_count` words are ordered by falling count."""
    count = min(count, word_count)
    if count == word_count:
        return SampledWords(np.arange(word_count), _UNLIMITED_TRIES, word_count)
    draws_so_far = np.empty(0, np.int64)
    while True:
        new_draws = np.exp(rng.random(2 * count) * np.log(word_count + 1.0)).astype(np.int64) - 1
        draws_so_far = np.concatenate([draws_so_far, np.minimum(new_draws, word_count - 1)])
        draw_indices = np.arange(len(draws_so_far), dtype=np.int32)
        first_draw_of_V = np.full(word_count, len(draws_so_far), np.int32)
        np.minimum.at(first_draw_of_V, draws_so_far, draw_indices)
        first_draws = np.flatnonzero(first_draw_of_V[draws_so_far] == draw_indices)
        if len(first_draws) >= count:
            words = np.sort(draws_so_far[first_draws[:count]])
            return SampledWords(words, int(first_draws[count - 1]) + 1, word_count)


_UNLIMITED_TRIES = 1 << 62  # if all words are candidates, each is expected once: log 1 = 0


def full_softmax_loss(
    h_NP: Tensor, targets_N: Tensor, weight_VP: Tensor, bias_V: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss of N predictions under the full softmax, the sum of −log p of their targets.
    A second tensor has each prediction's −log p, without gradient.

    `h_NP` has the output vectors of the biLM, `targets_N` the ids of the words to predict,
    `weight_VP` and `bias_V` the parameters of all words.
    """
    zeros = h_NP.new_zeros((), dtype=torch.float32)
    apply: Any = _Loss.apply
    loss: tuple[Tensor, Tensor] = apply(
        h_NP, weight_VP, bias_V, targets_N, None, None, zeros, zeros, False
    )
    return loss


@torch.no_grad()
def negative_log_likelihoods(softmax: Softmax, h_NP: Tensor, targets_N: Tensor) -> Tensor:
    """Return −log p of each of N target words under the full softmax, without gradients. `h_NP` has
    the output vectors of the biLM. Perplexity is measured with this function."""
    chunks = zip(
        torch.split(h_NP, PREDICTIONS_AT_ONCE),
        torch.split(targets_N, PREDICTIONS_AT_ONCE),
        strict=True,
    )
    return torch.cat([_compute_nats(*chunk, softmax.weight, softmax.bias) for chunk in chunks])


def _compute_nats(h_nP: Tensor, targets_n: Tensor, weight_VP: Tensor, bias_V: Tensor) -> Tensor:
    """Return −log p of a chunk of predictions, computed in blocks of words to bound memory."""
    max_logits = GPU_CHUNK_LOGITS if prefers_large_operations(h_nP.device) else CHUNK_LOGITS
    block_words = max(1, max_logits // max(1, len(h_nP)))
    max_n = h_nP.new_full((len(h_nP),), -torch.inf, dtype=torch.float32)
    z_n = torch.zeros_like(max_n)
    target_logit_n = torch.zeros_like(max_n)
    blocks = zip(torch.split(weight_VP, block_words), torch.split(bias_V, block_words), strict=True)
    for block_index, (weight_MP, bias_M) in enumerate(blocks):
        logits_nM = torch.mm(h_nP, weight_MP.to(h_nP.dtype).T).float().add_(bias_M)
        column_n = targets_n - block_index * block_words
        is_in_block_n = (column_n >= 0) & (column_n < len(bias_M))
        logit_n = logits_nM.gather(1, column_n.clamp(0, len(bias_M) - 1)[:, None])[:, 0]
        target_logit_n = torch.where(is_in_block_n, logit_n, target_logit_n)
        new_max_n = torch.maximum(max_n, logits_nM.amax(1))
        z_n = z_n * (max_n - new_max_n).exp() + logits_nM.sub_(new_max_n[:, None]).exp_().sum(1)
        max_n = new_max_n
    return z_n.log() + max_n - target_logit_n


class AccidentalHits(NamedTuple):
    """The predictions whose target is also a candidate, which must not count as a wrong answer:
    their indices, ascending, and the index of that candidate. `predictions` is `predictions_H` on
    the CPU."""

    predictions: npt.NDArray[np.int64]
    predictions_H: Tensor
    candidates_H: Tensor


class CandidateDraw(NamedTuple):
    """The candidates of a sampled softmax for N predictions, with all that the CPU can compute
    before the step. `words` are their ids, `hits` the targets that are candidates, and `expected_N`
    and `expected_M` the log expected counts of targets and candidates. The tensors are on the CPU,
    ready to be copied to the device."""

    words: npt.NDArray[np.int64]
    hits: AccidentalHits
    expected_N: Tensor
    expected_M: Tensor

    @classmethod
    def prepare(
        cls, targets_N: npt.NDArray[np.int64], candidates: SampledWords, device: torch.device
    ) -> "CandidateDraw":
        """Prepare the loss of N targets with these candidates: find the targets that are
        candidates, and compute the log expected counts of both, as tensors ready for `device`."""
        words = candidates.words
        candidate_N = index_table(words, candidates.word_count)[targets_N].astype(np.int64)
        hits = np.flatnonzero(candidate_N >= 0)
        expected_M = candidates.log_expected_counts(words)
        return cls(
            words,
            AccidentalHits(hits, host_tensor(hits, device), host_tensor(candidate_N[hits], device)),
            host_tensor(candidates.log_expected_counts(targets_N), device),
            host_tensor(expected_M, device),
        )


class LossRows(NamedTuple):
    """The indices of the N targets and the M candidates among the rows of the word matrix that a
    step uses, as CPU tensors."""

    target_N: Tensor
    candidate_M: Tensor

    @classmethod
    def find(
        cls,
        targets_N: npt.NDArray[np.int64],
        words: npt.NDArray[np.int64],
        row_of_V: npt.NDArray[np.int32],
        device: torch.device,
    ) -> "LossRows":
        """Find the rows of the targets and of the candidates `words`; `row_of_V` has the row of
        each word."""
        rows = (row_of_V[targets_N], row_of_V[words])
        return cls(*(host_tensor(row.astype(np.int64), device) for row in rows))


def sampled_softmax_loss(
    h_NP: Tensor,
    weight_UP: Tensor,
    bias_U: Tensor,
    draw: CandidateDraw,
    rows: LossRows,
    *,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the loss of N predictions under the sampled softmax, the sum of −log p of their
    targets. A second tensor has each prediction's −log p, without gradient.

    `weight_UP` and `bias_U` are the rows of the word matrix that are targets or candidates; only
    these get gradients. `draw` has the candidates, and `rows` the row of each target and candidate.
    With `compiled`, a GPU uses fused kernels for everything after the products.
    """
    device = h_NP.device
    hits = AccidentalHits(
        draw.hits.predictions, *(device_tensor(part, device) for part in draw.hits[1:])
    )
    operands = (*(device_tensor(row, device) for row in rows), hits)
    log_counts = (device_tensor(draw.expected_N, device), device_tensor(draw.expected_M, device))
    apply: Any = _Loss.apply
    loss: tuple[Tensor, Tensor] = apply(h_NP, weight_UP, bias_U, *operands, *log_counts, compiled)
    return loss


class _Loss(torch.autograd.Function):
    """The cross-entropy of N predictions; if `row_of_M` is None, all rows are candidates.

    With sampled candidates, the target is an additional logit; if it is also a candidate (`hits`),
    that candidate is ignored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h_NP: Tensor,
        weight_UP: Tensor,
        bias_U: Tensor,
        target_N: Tensor,
        row_of_M: Tensor | None,
        hits: AccidentalHits | None,
        expected_N: Tensor,
        expected_M: Tensor,
        compiled: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = h_NP.dtype
        softmax = fuse_on_gpu(_softmax, h_NP.device) if compiled else _softmax
        candidate_rows = slice(None) if row_of_M is None else row_of_M
        weight_MP = weight_UP[candidate_rows].to(dtype)
        bias_M = bias_U[candidate_rows].float() - expected_M
        gradients = _Gradients(h_NP, weight_MP) if any(ctx.needs_input_grad) else None
        nats_N = h_NP.new_empty(len(h_NP), dtype=torch.float32)
        dtarget_N = torch.empty_like(nats_N)
        minus_infinity = h_NP.new_full((), -torch.inf)
        for chunk, product_nM, logits_nM in _split_chunks(h_NP, len(bias_M), softmax is _softmax):
            h_nP = h_NP[chunk]
            product_nM = product(h_nP, weight_MP.T, scratch=product_nM)
            if row_of_M is None:
                rows_n = torch.arange(len(h_nP), device=h_nP.device)
                target_logit_n = product_nM[rows_n, target_N[chunk]] + bias_M[target_N[chunk]]
            else:
                target_weight_nP = weight_UP[target_N[chunk]].to(dtype)
                target_logit_n = (h_nP.float() * target_weight_nP.float()).sum(1)
                target_logit_n = target_logit_n + bias_U[target_N[chunk]] - expected_N[chunk]
                assert hits is not None
                chunk_hits = slice(*np.searchsorted(hits.predictions, (chunk.start, chunk.stop)))
                rows_n = hits.predictions_H[chunk_hits] - chunk.start
                # A tensor on the device: a number would be copied there, which waits for it.
                product_nM.index_put_((rows_n, hits.candidates_H[chunk_hits]), minus_infinity)
            is_sampled = row_of_M is not None
            nats_N[chunk], share_nM = softmax(
                product_nM, bias_M, target_logit_n, is_sampled, logits_nM
            )
            if gradients is None:
                continue
            if row_of_M is None:
                share_nM[rows_n, target_N[chunk]] -= 1
            gradients.add(chunk, share_nM, product_nM)
            if row_of_M is not None:
                dtarget_N[chunk] = torch.expm1(-nats_N[chunk])
                gradients.dh_NP[chunk] += (dtarget_N[chunk, None] * target_weight_nP).to(dtype)
        if gradients is not None:
            dweight_UP, dbias_U = gradients.sums()
            if row_of_M is not None:
                dweight_UP, dbias_U = gradients.spread_to_rows(len(weight_UP), row_of_M)
                add_rows_(dweight_UP, target_N, dtarget_N[:, None] * h_NP.float())
                add_rows_(dbias_U, target_N, dtarget_N)
            ctx.save_for_backward(gradients.dh_NP, dweight_UP, dbias_U)
        ctx.mark_non_differentiable(nats_N)
        return nats_N.sum(dtype=torch.float64).float(), nats_N

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dh_NP, dweight_UP, dbias_U = ctx.saved_tensors
        return dh_NP * dloss, dweight_UP * dloss, dbias_U * dloss, *(None,) * 6


def _softmax(
    product_nM: Tensor,
    bias_M: Tensor,
    target_logit_n: Tensor,
    is_sampled: bool,
    logits_nM: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return −log p of each prediction of a chunk, and each candidate's share of the probability,
    which is the gradient of its logit.

    `target_logit_n` is one of the candidates' logits unless `is_sampled`. `logits_nM` is
    memory for the logits and shares; without it, the shares have the dtype of the product.
    """
    dtype = product_nM.dtype if logits_nM is None else torch.float32
    logits_nM = torch.add(product_nM, bias_M, out=logits_nM)
    max_n = logits_nM.amax(1)
    if is_sampled:
        max_n = torch.maximum(max_n, target_logit_n)
    z_n = logits_nM.sub_(max_n[:, None]).exp_().sum(1)
    if is_sampled:
        z_n = z_n + (target_logit_n - max_n).exp()
    share_nM = logits_nM.mul_(z_n.reciprocal()[:, None])
    return z_n.log() + max_n - target_logit_n, share_nM.to(dtype)


def _split_chunks(
    h_NP: Tensor, candidates: int, stores_logits: bool
) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
    """Yield chunks of the predictions, each with buffers for its product and, if they are stored,
    for its logits.

    The buffers are reused, because new memory would cause page faults in every chunk.
    """
    max_logits = GPU_CHUNK_LOGITS if prefers_large_operations(h_NP.device) else CHUNK_LOGITS
    size = max(MIN_CHUNK_PREDICTIONS, max_logits // candidates)
    product_nM = h_NP.new_empty(min(size, len(h_NP)), candidates)
    logits_nM = torch.empty_like(product_nM, dtype=torch.float32) if stores_logits else None
    for start in range(0, len(h_NP), size):
        chunk = slice(start, min(start + size, len(h_NP)))
        n = chunk.stop - start
        yield chunk, product_nM[:n], None if logits_nM is None else logits_nM[:n]


class _Gradients:
    """Sums the gradients of the loss with respect to h (N, P) and the candidates' weights and
    biases."""

    def __init__(self, h_NP: Tensor, weight_MP: Tensor) -> None:
        self.h_NP, self.weight_MP = h_NP, weight_MP
        self.dh_NP = torch.empty_like(h_NP)
        self._partial_MP = torch.empty_like(weight_MP)
        self._sums: tuple[Tensor, Tensor] | None = None

    def add(self, chunk: slice, share_nM: Tensor, product_nM: Tensor) -> None:
        """Add a chunk's gradients, given the gradients of its logits; `product_nM` is a buffer in
        h's dtype."""
        dbias_M = share_nM.sum(0, dtype=torch.float32)
        if share_nM.dtype != self.h_NP.dtype:
            share_nM = product_nM.copy_(share_nM)
        product(share_nM, self.weight_MP, out=self.dh_NP[chunk])
        partial_MP = product(share_nM.T, self.h_NP[chunk], scratch=self._partial_MP)
        if self._sums is None:
            self._sums = partial_MP.to(torch.float32, copy=True), dbias_M
        else:
            self._sums[0].add_(partial_MP)
            self._sums[1].add_(dbias_M)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of weights (M, P) and biases (M), float32; zeros if nothing was
        added."""
        if self._sums is None:
            zeros_MP = torch.zeros_like(self.weight_MP, dtype=torch.float32)
            return zeros_MP, zeros_MP.new_zeros(len(zeros_MP))
        return self._sums

    def spread_to_rows(self, word_rows: int, row_of_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of all used rows: weights (U, P) and biases (U)."""
        dweight_MP, dbias_M = self.sums()
        dweight_UP = dweight_MP.new_zeros(word_rows, dweight_MP.shape[1])
        dbias_U = dbias_M.new_zeros(word_rows)
        dweight_UP[row_of_M] = dweight_MP
        dbias_U[row_of_M] = dbias_M
        return dweight_UP, dbias_U
