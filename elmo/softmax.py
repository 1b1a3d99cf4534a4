"""The training loss: full or sampled softmax over words, shared by both directions.

Loss and gradients are computed together, a chunk of predictions at a time, so that nothing of size
predictions × words is ever held. The sampled loss is TensorFlow's: log-uniform candidates without
repetition, accidental hits removed, log expected counts subtracted.

Shapes: N predictions, P projection, V words, U rows of the word matrix in use, M candidates.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

CHUNK_LOGITS = 1 << 20  # logits held at a time: 4 MB, so that they stay in a CPU's cache
GPU_CHUNK_LOGITS = 1 << 26  # 256 MB: a GPU wants few large launches


class Softmax(nn.Module):
    """The word matrix (V, P) and bias (V)."""

    def __init__(self, words: int, projection: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(words, projection))
        self.bias = nn.Parameter(torch.zeros(words))

    def reset_parameters(self, seed: int) -> None:
        """Draw the weights as in 2018."""
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.weight, 0, self.weight.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.bias)


class Candidates(NamedTuple):
    """Sampled words, sorted, and the number of draws out of V words that it took."""

    words: npt.NDArray[np.int64]
    tries: int
    vocabulary: int

    def log_expected(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """log(−expm1(tries · log1p(−p))) with p = log((w + 2) / (w + 1)) / log(V + 1)."""
        p = (np.log(words + 2.0) - np.log(words + 1.0)) / np.log(self.vocabulary + 1.0)
        return np.log(-np.expm1(self.tries * np.log1p(-p))).astype(np.float32)


def sample(count: int, vocabulary: int, random: np.random.Generator) -> Candidates:
    """Draw log-uniformly over word ids until `count` distinct words were seen."""
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
    """The summed −log p of the targets over all words, and each one (detached)."""
    zeros = h_NP.new_zeros((), dtype=torch.float32)
    nothing = torch.full_like(targets_N, -1)
    apply: Any = _Loss.apply
    found: tuple[Tensor, Tensor] = apply(
        h_NP, weight_VP, bias_V, targets_N, None, nothing, zeros, zeros
    )
    return found


def sampled_loss(
    h_NP: Tensor,
    targets_N: Tensor,
    weight_UP: Tensor,
    bias_U: Tensor,
    *,
    rows: npt.NDArray[np.int64],
    candidates: Candidates,
) -> tuple[Tensor, Tensor]:
    """The summed sampled −log p, and each one (detached).

    `weight_UP` and `bias_U` are the rows `rows` (sorted) of the word matrix: they hold every target
    and every candidate, and theirs are the only gradients.
    """
    to = h_NP.device
    targets = targets_N.cpu().numpy()
    place_M = np.searchsorted(rows, candidates.words)
    place_N = np.searchsorted(rows, targets)
    hit_N = np.searchsorted(candidates.words, targets)
    hit_N[hit_N == len(candidates.words)] = 0
    hit_N[candidates.words[hit_N] != targets] = -1
    apply: Any = _Loss.apply
    found: tuple[Tensor, Tensor] = apply(
        h_NP,
        weight_UP,
        bias_U,
        torch.from_numpy(place_N).to(to),
        torch.from_numpy(place_M).to(to),
        torch.from_numpy(hit_N).to(to),
        torch.from_numpy(candidates.log_expected(targets)).to(to),
        torch.from_numpy(candidates.log_expected(candidates.words)).to(to),
    )
    return found


class _Loss(torch.autograd.Function):
    """Cross-entropy of N predictions; `place_M` None means all rows are candidates.

    With candidates, the target is one more logit beside them, and its own place among them
    (`hit_N`, −1 where it is none) does not count.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h_NP: Tensor,
        weight_UP: Tensor,
        bias_U: Tensor,
        target_N: Tensor,
        place_M: Tensor | None,
        hit_N: Tensor,
        expected_N: Tensor,
        expected_M: Tensor,
    ) -> tuple[Tensor, Tensor]:
        to = h_NP.dtype
        used = slice(None) if place_M is None else place_M
        weight_MP = weight_UP[used].to(to)
        bias_M = bias_U[used].float() - expected_M
        wanted = any(ctx.needs_input_grad)
        nats_N = h_NP.new_empty(len(h_NP), dtype=torch.float32)
        dh_NP = torch.empty_like(h_NP) if wanted else None
        dweight_MP = torch.zeros_like(weight_MP, dtype=torch.float32) if wanted else None
        dbias_M = torch.zeros_like(bias_M) if wanted else None
        dtrue_N = torch.empty_like(nats_N)
        most = CHUNK_LOGITS if h_NP.device.type == "cpu" else GPU_CHUNK_LOGITS
        at_once = max(1, most // len(bias_M))
        # Written again by each chunk: fresh memory would be faulted in for each.
        product = torch.empty(min(at_once, len(h_NP)), len(bias_M), dtype=to, device=h_NP.device)
        logits = torch.empty_like(product, dtype=torch.float32)
        dweight = None if dweight_MP is None else torch.empty_like(weight_MP)
        for at in range(0, len(h_NP), at_once):
            part = slice(at, at + at_once)
            h_nP = h_NP[part]
            rows_n = torch.arange(len(h_nP), device=h_nP.device)
            product_nM, logits_nM = product[: len(h_nP)], logits[: len(h_nP)]
            torch.mm(h_nP, weight_MP.T, out=product_nM)
            torch.add(product_nM, bias_M, out=logits_nM)
            if place_M is None:
                true_n = logits_nM[rows_n, target_N[part]]
                top_n = logits_nM.amax(1)
            else:
                true_weight_nP = weight_UP[target_N[part]].to(to)
                true_n = (h_nP.float() * true_weight_nP.float()).sum(1)
                true_n = true_n + bias_U[target_N[part]] - expected_N[part]
                hits = hit_N[part] >= 0
                logits_nM[rows_n[hits], hit_N[part][hits]] = -torch.inf
                top_n = torch.maximum(logits_nM.amax(1), true_n)
            z_n = logits_nM.sub_(top_n[:, None]).exp_().sum(1)
            if place_M is not None:
                z_n += (true_n - top_n).exp()
            nats_N[part] = z_n.log() + top_n - true_n
            if dh_NP is None or dweight_MP is None or dbias_M is None or dweight is None:
                continue
            share_nM = logits_nM.mul_(z_n.reciprocal()[:, None])
            if place_M is None:
                share_nM[rows_n, target_N[part]] -= 1
            dbias_M += share_nM.sum(0)
            product_nM.copy_(share_nM)
            torch.mm(product_nM, weight_MP, out=dh_NP[part])
            dweight_MP += torch.mm(product_nM.T, h_nP, out=dweight)
            if place_M is not None:
                dtrue_N[part] = torch.expm1(-nats_N[part])
                dh_NP[part] += (dtrue_N[part, None] * true_weight_nP).to(to)
        if dh_NP is not None and dweight_MP is not None and dbias_M is not None:
            if place_M is None:
                dweight_UP, dbias_U = dweight_MP, dbias_M
            else:
                dweight_UP = torch.zeros_like(weight_UP, dtype=torch.float32)
                dbias_U = torch.zeros_like(bias_U, dtype=torch.float32)
                dweight_UP[place_M] = dweight_MP
                dbias_U[place_M] = dbias_M
                dweight_UP.index_add_(0, target_N, dtrue_N[:, None] * h_NP.float())
                dbias_U.index_add_(0, target_N, dtrue_N)
            ctx.save_for_backward(dh_NP, dweight_UP, dbias_U)
        ctx.mark_non_differentiable(nats_N)
        return nats_N.sum(dtype=torch.float64).float(), nats_N

    @staticmethod
    def backward(ctx: Any, dloss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        dh_NP, dweight_UP, dbias_U = ctx.saved_tensors
        return dh_NP * dloss, dweight_UP * dloss, dbias_U * dloss, *(None,) * 5
