"""Layers that several task models share.

Shapes: B sentences, T tokens, D width, K tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Span

FORBIDDEN_SCORE = -10000.0


class BidirectionalRNN(nn.Module):
    """A bidirectional LSTM (or GRU) over padded sentences. The vectors have `width` numbers; each
    direction has `depth` layers of `hidden` units.

    The backward direction begins at each sentence's last token. The directions are separate
    networks that also run over the padding, which is faster on a CPU than packed sequences.
    """

    def __init__(
        self, width: int, hidden: int, *, depth: int = 1, dropout: float = 0.0, gru: bool = False
    ) -> None:
        super().__init__()
        rnn_class = nn.GRU if gru else nn.LSTM
        widths = [width, *[2 * hidden] * (depth - 1)]
        self.forwards = nn.ModuleList(rnn_class(size, hidden, batch_first=True) for size in widths)
        self.backwards = nn.ModuleList(rnn_class(size, hidden, batch_first=True) for size in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Read sentences (B, T, D); return both directions' outputs (B, T, 2 · hidden), 0 where
        masked."""
        reversed_BT = reversed_indices(mask_BT)
        h_BTD = x_BTD
        for k, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            h_BTD = self.dropout(h_BTD) if k else h_BTD
            forward_BTD, _ = forwards(h_BTD)
            back_BTD, _ = backwards(reorder_tokens(h_BTD, reversed_BT))
            h_BTD = torch.cat([forward_BTD, reorder_tokens(back_BTD, reversed_BT)], -1)
        return h_BTD * mask_BT.unsqueeze(-1)


def reversed_indices(mask_BT: Tensor) -> Tensor:
    """Return the indices (B, T) that reverse each sentence; padding stays in place."""
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    return torch.where(mask_BT, lengths_B1 - 1 - positions_T, positions_T)


def reorder_tokens(x_BTD: Tensor, order_BT: Tensor) -> Tensor:
    """Return the tokens of each sentence in the order given by indices (B, T), as (B, T, D)."""
    return x_BTD.gather(1, order_BT.unsqueeze(-1).expand_as(x_BTD))


class SharedDropout(nn.Module):
    """Variational dropout: one mask for all tokens of a sentence, which sets the share `rate` of
    the features to 0 in training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return `x_BTD` with some of its D features set to 0 throughout each sentence."""
        mask_B1D = torch.ones_like(x_BTD[:, :1])
        return x_BTD * nn.functional.dropout(mask_B1D, self.rate, self.training)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the positions of the last axis where `mask` is true; 0 elsewhere."""
    return scores.masked_fill(~mask, float("-inf")).softmax(-1).nan_to_num(0.0)


def masked_max(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the maximum over each sentence's tokens, where `mask_BT` is true, (B, D)."""
    return x_BTD.masked_fill(~mask_BT.unsqueeze(-1), float("-inf")).amax(1)


def masked_mean(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over each sentence's tokens, where `mask_BT` is true, (B, D)."""
    total_BD = (x_BTD * mask_BT.unsqueeze(-1)).sum(1)
    return total_BD / mask_BT.sum(1, keepdim=True)


def viterbi_decode(
    scores_BTK: Tensor, mask_BT: Tensor, transitions_KK: Tensor, start_K: Tensor, end_K: Tensor
) -> list[list[int]]:
    """Return the tag sequence with the highest score for each sentence, as tag ids.

    The score of a sequence is the sum of `scores_BTK` over its tags, `transitions_KK` (from row to
    column) over neighbouring tags, `start_K` of the first tag and `end_K` of the last. `mask_BT` is
    true where there is a token.
    """
    scores_BTK, mask_BT = scores_BTK.cpu(), mask_BT.cpu()
    transitions_KK, start_K, end_K = transitions_KK.cpu(), start_K.cpu(), end_K.cpu()
    best_BK = start_K + scores_BTK[:, 0]
    pointers = []
    for t in range(1, scores_BTK.shape[1]):
        total_BKK = best_BK.unsqueeze(2) + transitions_KK
        best_score_BK, pointer_BK = total_BKK.max(1)
        is_token_B1 = mask_BT[:, t : t + 1]
        best_BK = torch.where(is_token_B1, best_score_BK + scores_BTK[:, t], best_BK)
        pointers.append(pointer_BK.tolist())
    last_tag_B = (best_BK + end_K).argmax(1).tolist()
    paths = []
    for row, (length, tag) in enumerate(zip(mask_BT.sum(1).tolist(), last_tag_B, strict=True)):
        path = [tag]
        for pointer in reversed(pointers[: length - 1]):
            path.append(pointer[row][path[-1]])
        paths.append(path[::-1])
    return paths


def tag_probabilities(
    scores_BTK: Tensor, mask_BT: Tensor, transitions_KK: Tensor, start_K: Tensor, end_K: Tensor
) -> Tensor:
    """Return the probability of each tag of each token, (B, T, K), over all tag sequences, scored
    as in `viterbi_decode`."""
    T = scores_BTK.shape[1]
    alpha_BK = start_K + scores_BTK[:, 0]
    alphas = [alpha_BK]
    for t in range(1, T):
        sums_BK = (alpha_BK.unsqueeze(2) + transitions_KK).logsumexp(1) + scores_BTK[:, t]
        alpha_BK = torch.where(mask_BT[:, t : t + 1], sums_BK, alpha_BK)
        alphas.append(alpha_BK)
    beta_BK = end_K.expand_as(alpha_BK)
    betas = [beta_BK]
    for t in range(T - 1, 0, -1):
        sums_BK = (transitions_KK + (scores_BTK[:, t] + beta_BK).unsqueeze(1)).logsumexp(2)
        beta_BK = torch.where(mask_BT[:, t : t + 1], sums_BK, beta_BK)
        betas.append(beta_BK)
    return (torch.stack(alphas, 1) + torch.stack(betas[::-1], 1)).softmax(-1)


def path_probabilities(probabilities_TK: Tensor, path: Sequence[int]) -> list[float]:
    """Return the probability of each tag of a path; `probabilities_TK` has those of all tags."""
    tag_ids = torch.tensor(path, device=probabilities_TK.device).unsqueeze(1)
    return probabilities_TK[: len(path)].gather(1, tag_ids).squeeze(1).tolist()


def describe_spans(spans: Sequence[Span], scores: Sequence[float] | None) -> list[dict[str, Any]]:
    """Return spans as dictionaries for JSON, each with the lowest of its tokens' `scores`."""
    entries = [{"start": start, "stop": stop, "label": label} for start, stop, label in spans]
    if scores is not None:
        for entry, (start, stop, _) in zip(entries, spans, strict=True):
            entry["score"] = round(min(scores[start:stop]), 4)
    return entries


def pad_labels(rows: Sequence[Sequence[int]], shape_BT: Tensor) -> Tensor:
    """Return lists of label ids as one tensor (B, T), padded with 0.

    `shape_BT` is a tensor of the shape and device of the result.
    """
    labels_BT = torch.zeros(shape_BT.shape, dtype=torch.long)
    for row, label_ids in enumerate(rows):
        labels_BT[row, : len(label_ids)] = torch.tensor(label_ids)
    return labels_BT.to(shape_BT.device)
