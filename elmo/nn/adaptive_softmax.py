"""torch's adaptive softmax, a choice for large vocabularies: frequent words at once, the others by
clusters.

The head holds a twentieth of the words and an entry for each of two
clusters, which have smaller projections and are evaluated only for their own words.

Shapes: N predictions, P projection.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

SHRINK = 2.0  # each cluster's projection is this much smaller than that of the one before


class AdaptiveSoftmax(nn.Module):
    """Words below `cutoffs[0]` are in the head, those up to each next cutoff in a cluster."""

    def __init__(
        self, words: int, projection: int, *, cutoffs: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        chosen = sorted({max(1, words // 20), max(1, words // 4)}) if cutoffs is None else cutoffs
        self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(
            projection, words, list(chosen), div_value=SHRINK, head_bias=True
        )

    def reset_parameters(self, seed: int) -> None:
        """Draw the weights like those of the other softmax."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, parameter.shape[1] ** -0.5, generator=generator)
            else:
                nn.init.zeros_(parameter)

    @classmethod
    def shaped_like(cls, state: dict[str, Tensor], *, words: int) -> "AdaptiveSoftmax":
        """An untrained one with the clusters of these weights; the last may have more words."""
        sizes = cluster_sizes(state)
        cutoffs = [len(state["adaptive.head.weight"]) - len(sizes)]
        for size in sizes[:-1]:
            cutoffs.append(cutoffs[-1] + size)
        return cls(words, state["adaptive.head.weight"].shape[1], cutoffs=cutoffs)

    def nats(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        """−log p of each target, with its gradient."""
        if len(targets_N) == 0:
            return h_NP.float().sum(1)
        return -self.adaptive(h_NP.float(), targets_N).output


def cluster_sizes(state: dict[str, Tensor]) -> list[int]:
    """Return how many words each cluster of these weights has."""
    names = (f"adaptive.tail.{k}.1.weight" for k in range(len(state)))
    return [len(state[name]) for name in names if name in state]
