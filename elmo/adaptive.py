"""The adaptive softmax by choice (torch's): frequent words at once, the others by clusters.

For large vocabularies: the head holds a twentieth of the words and an entry for each of two
clusters, which have smaller projections and are looked into only for their own words.

Shapes: N predictions, P projection.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmo.softmax import Softmax, full_loss

CHUNK = 1024  # predictions evaluated at a time
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

    def nats(self, h_NP: Tensor, targets_N: Tensor) -> Tensor:
        """−log p of each target, with its gradient."""
        if len(targets_N) == 0:
            return h_NP.float().sum(1)
        return -self.adaptive(h_NP.float(), targets_N).output


AnySoftmax = Softmax | AdaptiveSoftmax


def new_softmax(kind: str, words: int, projection: int, *, seed: int) -> AnySoftmax:
    """An untrained softmax for training with `kind`: sampled, full or adaptive."""
    made = (AdaptiveSoftmax if kind == "adaptive" else Softmax)(words, projection)
    made.reset_parameters(seed)
    return made


def is_adaptive(state: dict[str, Tensor]) -> bool:
    """Whether these are the weights of an adaptive softmax."""
    return "weight" not in state


def words_in(state: dict[str, Tensor]) -> int:
    """For how many words these weights are; 0 where they are no softmax."""
    if not is_adaptive(state):
        return len(state["weight"])
    sizes = _cluster_sizes(state)
    return len(state.get("adaptive.head.weight", ())) - len(sizes) + sum(sizes)


def softmax_from(
    state: dict[str, Tensor], *, words: int | None = None, seed: int = 0
) -> AnySoftmax:
    """The softmax with these weights; with more `words` than they are for, new rows are drawn."""
    words = words_in(state) if words is None else words
    made: AnySoftmax
    if is_adaptive(state):
        sizes = _cluster_sizes(state)
        cutoffs = [len(state["adaptive.head.weight"]) - len(sizes)]
        for size in sizes[:-1]:
            cutoffs.append(cutoffs[-1] + size)
        projection = state["adaptive.head.weight"].shape[1]
        made = AdaptiveSoftmax(words, projection, cutoffs=cutoffs)
    else:
        made = Softmax(words, state["weight"].shape[1])
    made.reset_parameters(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter[: len(state[name])] = state[name]
    return made


@torch.no_grad()
def evaluate(softmax: AnySoftmax, h_NP: Tensor, targets_N: Tensor) -> Tensor:
    """−log p of each target over all words, a chunk of predictions at a time."""
    if isinstance(softmax, Softmax):
        # Detached: whatever requires a gradient gets one, even here.
        return full_loss(h_NP, targets_N, softmax.weight.detach(), softmax.bias.detach())[1]
    chunks = zip(torch.split(h_NP, CHUNK), torch.split(targets_N, CHUNK), strict=True)
    return torch.cat([softmax.nats(*chunk) for chunk in chunks])


def _cluster_sizes(state: dict[str, Tensor]) -> list[int]:
    names = (f"adaptive.tail.{k}.1.weight" for k in range(len(state)))
    return [len(state[name]) for name in names if name in state]
