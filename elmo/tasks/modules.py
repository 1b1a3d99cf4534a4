"""Layers that several task models share.

Shapes: B sentences, T tokens, D width, K tags.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

FORBIDDEN = -10000.0


class Recurrent(nn.Module):
    """A bidirectional LSTM or GRU over padded sentences; backward starts at the last token.

    Each direction is a network of its own that reads padding after the last token. A packed
    sequence is slower on a CPU: the gradient of each of its time steps is as large as the input.
    """

    def __init__(
        self, width: int, hidden: int, *, depth: int = 1, dropout: float = 0.0, gru: bool = False
    ) -> None:
        super().__init__()
        kind = nn.GRU if gru else nn.LSTM
        widths = [width, *[2 * hidden] * (depth - 1)]
        self.forwards = nn.ModuleList(kind(w, hidden, batch_first=True) for w in widths)
        self.backwards = nn.ModuleList(kind(w, hidden, batch_first=True) for w in widths)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """(B, T, D) → (B, T, 2 · hidden), 0 where masked."""
        turned_BT = turned(mask_BT)
        h_BTD = x_BTD
        for k, (forwards, backwards) in enumerate(zip(self.forwards, self.backwards, strict=True)):
            h_BTD = self.dropout(h_BTD) if k else h_BTD
            ahead_BTD, _ = forwards(h_BTD)
            back_BTD, _ = backwards(in_order(h_BTD, turned_BT))
            h_BTD = torch.cat([ahead_BTD, in_order(back_BTD, turned_BT)], -1)
        return h_BTD * mask_BT.unsqueeze(-1)


def turned(mask_BT: Tensor) -> Tensor:
    """Return which token each position holds when the sentence is read backwards; padding stays."""
    t_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    lengths_B1 = mask_BT.sum(1, keepdim=True)
    return torch.where(mask_BT, lengths_B1 - 1 - t_T, t_T)


def in_order(x_BTD: Tensor, order_BT: Tensor) -> Tensor:
    """The tokens of each sentence in another order, (B, T, D)."""
    return x_BTD.gather(1, order_BT.unsqueeze(-1).expand_as(x_BTD))


class SharedDropout(nn.Module):
    """Dropout with one mask for all tokens of a sentence (variational)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) → the same, some of D zero in each sentence."""
        ones_B1D = torch.ones_like(x_BTD[:, :1])
        return x_BTD * nn.functional.dropout(ones_B1D, self.rate, self.training)


def masked_softmax(scores: Tensor, mask: Tensor, dim: int = -1) -> Tensor:
    """Softmax over what the mask keeps."""
    return scores.masked_fill(~mask, float("-inf")).softmax(dim).nan_to_num(0.0)


def masked_max(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The maximum over the tokens."""
    return x_BTD.masked_fill(~mask_BT.unsqueeze(-1), float("-inf")).amax(1)


def masked_mean(x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over the tokens."""
    total_BD = (x_BTD * mask_BT.unsqueeze(-1)).sum(1)
    return total_BD / mask_BT.sum(1, keepdim=True)


def viterbi(
    scores_BTK: Tensor, mask_BT: Tensor, moves_KK: Tensor, start_K: Tensor, end_K: Tensor
) -> list[list[int]]:
    """The best path of each sentence: the sum of scores of tags, moves between them, and ends."""
    scores_BTK, mask_BT = scores_BTK.cpu(), mask_BT.cpu()
    moves_KK, start_K, end_K = moves_KK.cpu(), start_K.cpu(), end_K.cpu()
    best_BK = start_K + scores_BTK[:, 0]
    pointers = []
    for t in range(1, scores_BTK.shape[1]):
        total_BKK = best_BK.unsqueeze(2) + moves_KK
        reached_BK, pointer_BK = total_BKK.max(1)
        inside_B1 = mask_BT[:, t : t + 1]
        best_BK = torch.where(inside_B1, reached_BK + scores_BTK[:, t], best_BK)
        pointers.append(pointer_BK.tolist())
    last_B = (best_BK + end_K).argmax(1).tolist()
    paths = []
    for row, (length, tag) in enumerate(zip(mask_BT.sum(1).tolist(), last_B, strict=True)):
        path = [tag]
        for pointer in reversed(pointers[: length - 1]):
            path.append(pointer[row][path[-1]])
        paths.append(path[::-1])
    return paths


def padded_labels(rows: Sequence[Sequence[int]], like_BT: Tensor, *, fill: int = 0) -> Tensor:
    """Rows of numbers as (B, T)."""
    labels_BT = torch.full(like_BT.shape, fill)
    for row, numbers in enumerate(rows):
        labels_BT[row, : len(numbers)] = torch.tensor(numbers)
    return labels_BT.to(like_BT.device)
