"""The softmax over words, shared by both directions: its parameters, loss and evaluation.

Loss and gradients are computed together, a chunk of predictions at a time, so nothing of size
predictions × words is ever stored; an evaluation also takes the words in blocks. The sampled loss
is TensorFlow's: log-uniform candidates without repetition, accidental hits removed, log expected
counts subtracted.

Shapes: N predictions, n of them in a chunk, P projection, V words, U rows of the word matrix in
use, M candidates or words of a block, H predictions whose target is a candidate.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from elmo.nn.device import device_tensor, host_tensor, wants_few_launches

CHUNK_LOGITS = 1 << 20  # logits held at a time: 4 MB, so that they stay in a CPU's cache
GPU_CHUNK_LOGITS = 1 << 26  # 256 MB: a GPU wants few large launches
MIN_CHUNK = 64  # predictions at a time: with fewer, a product waits for the word matrix
EVALUATED = 1024  # predictions evaluated at a time


class Softmax(nn.Module):
    """The parameters of the softmax: the word matrix (V, P) and the bias (V)."""

    def __init__(self, words: int, projection: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(words, projection))
        self.bias = nn.Parameter(torch.zeros(words))

    def reset_parameters(self, seed: int) -> None:
        """Initialise the weights as in 2018."""
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.weight, 0, self.weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.bias)


def new_softmax(words: int, projection: int, *, seed: int) -> Softmax:
    """Return a softmax with newly initialised weights."""
    softmax = Softmax(words, projection)
    softmax.reset_parameters(seed)
    return softmax


def softmax_from(state: dict[str, Tensor], *, words: int | None = None, seed: int = 0) -> Softmax:
    """Return a softmax with the given weights; if `words` exceeds their number, new rows are
    initialised."""
    known, projection = state["weight"].shape
    softmax = new_softmax(known if words is None else words, projection, seed=seed)
    with torch.no_grad():
        for name, parameter in softmax.named_parameters():
            parameter[:known] = state[name]
    return softmax


class Candidates(NamedTuple):
    """The sampled words, sorted, and the number of draws among V words that were needed."""

    words: npt.NDArray[np.int64]
    tries: int
    vocabulary: int

    def log_expected(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the log of the expected count of each word, float32.

        It is log(−expm1(tries · log1p(−p))) with p = log((w + 2) / (w + 1)) / log(V + 1).
        """
        p = (np.log(words + 2.0) - np.log(words + 1.0)) / np.log(self.vocabulary + 1.0)
        return np.log(-np.expm1(self.tries * np.log1p(-p))).astype(np.float32)


def sample(count: int, vocabulary: int, random: np.random.Generator) -> Candidates:
    """Sample word ids log-uniformly until `count` distinct words have been drawn."""
    count = min(count, vocabulary)
    if count == vocabulary:
        return Candidates(np.arange(vocabulary), _ALL, vocabulary)
    drawn = np.empty(0, np.int64)
    while True:
        more = np.exp(random.random(2 * count) * np.log(vocabulary + 1.0)).astype(np.int64) - 1
        drawn = np.concatenate([drawn, np.minimum(more, vocabulary - 1)])
        first = np.sort(np.unique(drawn, return_index=True)[1])
        if len(first) >= count:
            words = np.sort(drawn[first[:count]])
            return Candidates(words, int(first[count - 1]) + 1, vocabulary)


_ALL = 1 << 62  # with every word a candidate, each is expected once: log 1 = 0


def full_loss(
    h_NP: Tensor, targets_N: Tensor, weight_VP: Tensor, bias_V: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the summed −log p of the targets under the full softmax, and each one, detached
    (N)."""
    zeros = h_NP.new_zeros((), dtype=torch.float32)
    apply: Any = _Loss.apply
    loss: tuple[Tensor, Tensor] = apply(
        h_NP, weight_VP, bias_V, targets_N, None, None, zeros, zeros
    )
    return loss


@torch.no_grad()
def evaluate(softmax: Softmax, h_NP: Tensor, targets_N: Tensor) -> Tensor:
    """Return −log p of each target under the full softmax (N), without a gradient."""
    chunks = zip(torch.split(h_NP, EVALUATED), torch.split(targets_N, EVALUATED), strict=True)
    return torch.cat([_nats(*chunk, softmax.weight, softmax.bias) for chunk in chunks])


def _nats(h_nP: Tensor, targets_n: Tensor, weight_VP: Tensor, bias_V: Tensor) -> Tensor:
    """Return −log p of a chunk of predictions, computed in blocks of words to bound memory."""
    max_logits = GPU_CHUNK_LOGITS if wants_few_launches(h_nP.device) else CHUNK_LOGITS
    words = max(1, max_logits // max(1, len(h_nP)))
    top_n = h_nP.new_full((len(h_nP),), -torch.inf, dtype=torch.float32)
    z_n = torch.zeros_like(top_n)
    true_n = torch.zeros_like(top_n)
    blocks = zip(torch.split(weight_VP, words), torch.split(bias_V, words), strict=True)
    for number, (weight_MP, bias_M) in enumerate(blocks):
        logits_nM = torch.mm(h_nP, weight_MP.to(h_nP.dtype).T).float().add_(bias_M)
        inside_n = targets_n - number * words
        in_block_n = (inside_n >= 0) & (inside_n < len(bias_M))
        logit_n = logits_nM.gather(1, inside_n.clamp(0, len(bias_M) - 1)[:, None])[:, 0]
        true_n = torch.where(in_block_n, logit_n, true_n)
        new_n = torch.maximum(top_n, logits_nM.amax(1))
        z_n = z_n * (top_n - new_n).exp() + logits_nM.sub_(new_n[:, None]).exp_().sum(1)
        top_n = new_n
    return z_n.log() + top_n - true_n


class Hits(NamedTuple):
    """The predictions whose target is a candidate, ascending, and the index of that candidate."""

    predictions: npt.NDArray[np.int64]
    predictions_H: Tensor
    candidates_H: Tensor


class Draw(NamedTuple):
    """The sampled candidates for N predictions, with all that the host can compute before the step.

    The arrays are CPU tensors, ready to be copied to the device.
    """

    words: npt.NDArray[np.int64]
    hits: Hits
    expected_N: Tensor
    expected_M: Tensor

    @classmethod
    def of(
        cls, targets_N: npt.NDArray[np.int64], candidates: Candidates, device: torch.device
    ) -> "Draw":
        """Find the targets that are candidates, and compute the log expected counts of both."""
        words = candidates.words
        hit_N = np.searchsorted(words, targets_N)
        hit_N[hit_N == len(words)] = 0
        hits = np.flatnonzero(words[hit_N] == targets_N)
        expected_M = candidates.log_expected(words)
        return cls(
            words,
            Hits(hits, host_tensor(hits, device), host_tensor(hit_N[hits], device)),
            host_tensor(candidates.log_expected(targets_N), device),
            host_tensor(expected_M, device),
        )


class LookedUp(NamedTuple):
    """The indices of targets and candidates in the used rows of the word matrix, as CPU tensors."""

    of_N: Tensor
    of_M: Tensor

    @classmethod
    def of(
        cls,
        targets_N: npt.NDArray[np.int64],
        words: npt.NDArray[np.int64],
        word_rows: npt.NDArray[np.int64],
        device: torch.device,
    ) -> "LookedUp":
        """Look up targets and candidates `words` in the sorted ids `word_rows`."""
        found = (np.searchsorted(word_rows, each) for each in (targets_N, words))
        return cls(*(host_tensor(rows, device) for rows in found))


def sampled_loss(
    h_NP: Tensor, weight_UP: Tensor, bias_U: Tensor, draw: Draw, rows: LookedUp
) -> tuple[Tensor, Tensor]:
    """Return the summed sampled −log p of the targets, and each one, detached (N).

    `weight_UP` and `bias_U` are the used rows of the word matrix, which include every target and
    candidate; only they get gradients.
    """
    device = h_NP.device
    hits = Hits(draw.hits.predictions, *(device_tensor(part, device) for part in draw.hits[1:]))
    looked_up = (device_tensor(rows.of_N, device), device_tensor(rows.of_M, device), hits)
    expected = (device_tensor(draw.expected_N, device), device_tensor(draw.expected_M, device))
    apply: Any = _Loss.apply
    loss: tuple[Tensor, Tensor] = apply(h_NP, weight_UP, bias_U, *looked_up, *expected)
    return loss


class _Loss(torch.autograd.Function):
    """The cross-entropy of N predictions; with `row_of_M` None, all rows are candidates.

    With sampled candidates, the target is one more logit beside them, and itself among them
    (`hits`) is ignored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h_NP: Tensor,
        weight_UP: Tensor,
        bias_U: Tensor,
        target_N: Tensor,
        row_of_M: Tensor | None,
        hits: Hits | None,
        expected_N: Tensor,
        expected_M: Tensor,
    ) -> tuple[Tensor, Tensor]:
        dtype = h_NP.dtype
        used = slice(None) if row_of_M is None else row_of_M
        weight_MP = weight_UP[used].to(dtype)
        bias_M = bias_U[used].float() - expected_M
        gradients = _Gradients(h_NP, weight_MP) if any(ctx.needs_input_grad) else None
        nats_N = h_NP.new_empty(len(h_NP), dtype=torch.float32)
        dtrue_N = torch.empty_like(nats_N)
        for part, product_nM, logits_nM in _chunks(h_NP, len(bias_M)):
            h_nP = h_NP[part]
            torch.mm(h_nP, weight_MP.T, out=product_nM)
            torch.add(product_nM, bias_M, out=logits_nM)
            if row_of_M is None:
                rows_n = torch.arange(len(h_nP), device=h_nP.device)
                true_n = logits_nM[rows_n, target_N[part]]
                top_n = logits_nM.amax(1)
            else:
                true_weight_nP = weight_UP[target_N[part]].to(dtype)
                true_n = (h_nP.float() * true_weight_nP.float()).sum(1)
                true_n = true_n + bias_U[target_N[part]] - expected_N[part]
                assert hits is not None
                chunk = slice(*np.searchsorted(hits.predictions, (part.start, part.stop)))
                rows_n = hits.predictions_H[chunk] - part.start
                logits_nM[rows_n, hits.candidates_H[chunk]] = -torch.inf
                top_n = torch.maximum(logits_nM.amax(1), true_n)
            z_n = logits_nM.sub_(top_n[:, None]).exp_().sum(1)
            if row_of_M is not None:
                z_n += (true_n - top_n).exp()
            nats_N[part] = z_n.log() + top_n - true_n
            if gradients is None:
                continue
            share_nM = logits_nM.mul_(z_n.reciprocal()[:, None])
            if row_of_M is None:
                share_nM[rows_n, target_N[part]] -= 1
            gradients.add(part, share_nM, product_nM)
            if row_of_M is not None:
                dtrue_N[part] = torch.expm1(-nats_N[part])
                gradients.dh_NP[part] += (dtrue_N[part, None] * true_weight_nP).to(dtype)
        if gradients is not None:
            dweight_UP, dbias_U = gradients.sums()
            if row_of_M is not None:
                dweight_UP, dbias_U = gradients.by_word_row(len(weight_UP), row_of_M)
                dweight_UP.index_add_(0, target_N, dtrue_N[:, None] * h_NP.float())
                dbias_U.index_add_(0, target_N, dtrue_N)
            ctx.save_for_backward(gradients.dh_NP, dweight_UP, dbias_U)
        ctx.mark_non_differentiable(nats_N)
        return nats_N.sum(dtype=torch.float64).float(), nats_N

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dh_NP, dweight_UP, dbias_U = ctx.saved_tensors
        return dh_NP * dloss, dweight_UP * dloss, dbias_U * dloss, *(None,) * 5


def _chunks(h_NP: Tensor, candidates: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield chunks of the predictions, each with buffers for its product and its logits.

    The buffers are reused, since fresh memory would cause page faults in every chunk.
    """
    max_logits = GPU_CHUNK_LOGITS if wants_few_launches(h_NP.device) else CHUNK_LOGITS
    size = max(MIN_CHUNK, max_logits // candidates)
    product_nM = h_NP.new_empty(min(size, len(h_NP)), candidates)
    logits_nM = torch.empty_like(product_nM, dtype=torch.float32)
    for start in range(0, len(h_NP), size):
        part = slice(start, min(start + size, len(h_NP)))
        n = part.stop - start
        yield part, product_nM[:n], logits_nM[:n]


class _Gradients:
    """The summed gradients of the loss with respect to h (N, P) and the candidates' weights and
    biases."""

    def __init__(self, h_NP: Tensor, weight_MP: Tensor) -> None:
        self.h_NP, self.weight_MP = h_NP, weight_MP
        self.dh_NP = torch.empty_like(h_NP)
        self._partial_MP = torch.empty_like(weight_MP)
        self._sums: tuple[Tensor, Tensor] | None = None

    def add(self, part: slice, share_nM: Tensor, product_nM: Tensor) -> None:
        """Add a chunk's gradients, given those of its logits; `product_nM` is a buffer in h's
        dtype."""
        dbias_M = share_nM.sum(0)
        product_nM.copy_(share_nM)
        torch.mm(product_nM, self.weight_MP, out=self.dh_NP[part])
        torch.mm(product_nM.T, self.h_NP[part], out=self._partial_MP)
        if self._sums is None:
            self._sums = self._partial_MP.to(torch.float32, copy=True), dbias_M
        else:
            self._sums[0].add_(self._partial_MP)
            self._sums[1].add_(dbias_M)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of weights (M, P) and biases (M), float32; zeros if nothing was
        added."""
        if self._sums is None:
            zeros_MP = torch.zeros_like(self.weight_MP, dtype=torch.float32)
            return zeros_MP, zeros_MP.new_zeros(len(zeros_MP))
        return self._sums

    def by_word_row(self, word_rows: int, row_of_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of all used rows: weights (U, P) and biases (U)."""
        dweight_MP, dbias_M = self.sums()
        dweight_UP = dweight_MP.new_zeros(word_rows, dweight_MP.shape[1])
        dbias_U = dbias_M.new_zeros(word_rows)
        dweight_UP[row_of_M] = dweight_MP
        dbias_U[row_of_M] = dbias_M
        return dweight_UP, dbias_U
