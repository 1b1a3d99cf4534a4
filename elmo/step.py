"""One training step: a window in, one optimizer update out, the same for any number of workers.

The loss is summed over the predictions of all rows and divided by how many a full step has (so that
a token weighs the same in every step, the last ones too, when rows run dry); dropout is drawn for
all rows and candidates for all workers. So one, two or three workers take the same step.

Shapes: S directions, T steps, B rows of this worker, R rows of all workers, P projection.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elmo.adaptive import AdaptiveSoftmax, AnySoftmax
from elmo.bilm import BiLM
from elmo.errors import ElmoError
from elmo.lstm import Drop, State
from elmo.optimizer import Optimizer, global_norm
from elmo.settings import Training
from elmo.softmax import Candidates, full_loss, sample, sampled_loss
from elmo.stream import Window


@dataclass(frozen=True)
class Workers:
    """Who takes the steps: this worker's number among all of them, and where it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def mine(self, rows: int) -> list[int]:
        """The rows this worker owns, as even as can be."""
        if rows < self.size:
            raise ElmoError(f"{rows} rows are too few for {self.size} workers; raise training.rows")
        bounds = [rows * k // self.size for k in (self.rank, self.rank + 1)]
        return list(range(*bounds))

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all workers."""
        if self.size == 1:
            return list(values)
        shared = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(shared)
        return shared.tolist()


class Measured(NamedTuple):
    """What one step showed: summed −log p each way, predictions each way, and the norm."""

    nats: tuple[float, float]
    predictions: int
    norm: float
    clipped: bool


class Body(nn.Module):
    """Encoder and LSTM stacks in one forward pass: what DDP wraps."""

    def __init__(self, bilm: BiLM, precision: torch.dtype) -> None:
        super().__init__()
        self.bilm, self.precision = bilm, precision

    def forward(
        self,
        types_NK: Tensor,
        index_STB: Tensor,
        state: State,
        reset_STB: Tensor | None,
        drop: Drop,
    ) -> tuple[Tensor, State]:
        """The dropped top layer (S, T, B, P) and the state after the window."""
        x_NP = self.bilm.encode(types_NK, precision=self.precision)
        x_STBP = nn.functional.embedding(index_STB, x_NP)
        ys, state = self.bilm.lstm(x_STBP, state, reset_STB=reset_STB, drop=drop)
        return drop(ys[-1], self.bilm.config.layers), state


class Stepper:
    """Takes steps with one model; everything it changes is in the model, softmax and optimizer."""

    def __init__(
        self,
        bilm: BiLM,
        softmax: AnySoftmax,
        optimizer: Optimizer,
        settings: Training,
        workers: Workers,
        *,
        lr_of: dict[str, float],
    ) -> None:
        self.bilm, self.softmax, self.optimizer = bilm, softmax, optimizer
        self.settings, self.workers, self.lr_of = settings, workers, lr_of
        body = Body(bilm, getattr(torch, settings.precision))
        self.body: nn.Module = body
        self.predictions = 2 * settings.rows * settings.window
        if workers.size > 1 and any(p.requires_grad for p in bilm.parameters()):
            self.body = nn.parallel.DistributedDataParallel(body, gradient_as_bucket_view=True)

    def step(
        self, window: Window, state: State, *, step: int, steps: int
    ) -> tuple[Measured, State]:
        """Take step number `step` (from 0) of `steps`; return what it showed and the new state.

        Raises `FloatingPointError` where the loss or a gradient is not finite; then nothing was
        updated.
        """
        settings = self.settings
        to = self.workers.device
        self.body.zero_grad(set_to_none=True)
        reset_STB = None
        if settings.reset == "sentence":
            reset_STB = torch.from_numpy(window.reset_TB).to(to).expand(2, -1, -1)
        h_STBP, after = self.body(
            torch.from_numpy(window.types_NK).to(to),
            torch.from_numpy(window.index_STB).to(to),
            state,
            reset_STB,
            self._drop(step),
        )
        nats_S, rows, leaves = self._loss(h_STBP, window, step)
        loss = nats_S.sum() * (settings.loss_scale / self.predictions)
        torch.autograd.backward(loss * self.workers.size)
        gradients = {
            f"bilm.{name}": parameter.grad
            for name, parameter in self.bilm.named_parameters()
            if parameter.grad is not None
        }
        for name, leaf in leaves.items():
            if self.lr_of.get(name) == 0:
                continue
            # A cluster of the adaptive softmax may be without a target in a step.
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            if self.workers.size > 1:
                dist.all_reduce(gradient)
                gradient /= self.workers.size
            gradients[name] = gradient
        norm = global_norm(gradients.values())
        shown = self.workers.total(nats_S.tolist())
        if not (math.isfinite(norm) and math.isfinite(sum(shown))):
            raise FloatingPointError
        clipped = 0 < settings.optimizer.clip < norm
        if clipped:
            for gradient in gradients.values():
                gradient.mul_(settings.optimizer.clip / norm)
        self.optimizer.update(
            gradients,
            step=step,
            lr=settings.optimizer.lr_at(step, steps),
            lr_of=self.lr_of,
            rows=rows,
        )
        return Measured((shown[0], shown[1]), window.count // 2, norm, clipped), after

    def _loss(
        self, h_STBP: Tensor, window: Window, step: int
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """−log p summed for each direction, the rows of the word matrix in use, their leaves."""
        h_SNP = h_STBP.flatten(1, 2)
        targets_SN = torch.from_numpy(window.targets_STB).to(h_STBP.device).flatten(1, 2)
        if not window.mask_TB.all():
            on_N = torch.from_numpy(window.mask_TB).to(h_STBP.device).flatten()
            h_SNP, targets_SN = h_SNP[:, on_N], targets_SN[:, on_N]
        leaves: dict[str, Tensor] = {}
        for name, leaf in self.softmax.named_parameters():
            leaf.grad = None
            leaves[f"softmax.{name}"] = leaf
        if isinstance(self.softmax, AdaptiveSoftmax):
            nats_N = self.softmax.nats(h_SNP.flatten(0, 1), targets_SN.flatten())
            return nats_N.view(2, -1).sum(1, dtype=torch.float64), {}, leaves
        weight, bias = self.softmax.weight, self.softmax.bias
        if self.settings.softmax == "full":
            loss, nats_N = full_loss(h_SNP.flatten(0, 1), targets_SN.flatten(), weight, bias)
            return _by_direction(loss, nats_N), {}, leaves
        draws, ours = self._draw(step, words=len(weight))
        rows = np.unique(np.concatenate([window.words, *(draw.words for draw in draws)]))
        at = torch.from_numpy(rows).to(weight.device)
        weight_UP = weight.detach()[at].requires_grad_()
        bias_U = bias.detach()[at].requires_grad_()
        if len(ours) == 1:
            loss, nats_N = sampled_loss(
                h_SNP.flatten(0, 1), targets_SN.flatten(), weight_UP, bias_U,
                rows=rows, candidates=ours[0],
            )  # fmt: skip
            nats_S = _by_direction(loss, nats_N)
        else:
            both = [
                sampled_loss(h_NP, targets_N, weight_UP, bias_U, rows=rows, candidates=draw)[0]
                for h_NP, targets_N, draw in zip(h_SNP, targets_SN, ours, strict=True)
            ]
            nats_S = torch.stack(both)
        used = {"softmax.weight": at, "softmax.bias": at}
        return nats_S, used, {"softmax.weight": weight_UP, "softmax.bias": bias_U}

    def _draw(self, step: int, *, words: int) -> tuple[list[Candidates], list[Candidates]]:
        """The candidates of all workers, and this worker's: one draw, or one for each direction."""
        settings = self.settings

        def draw(*which: int) -> Candidates:
            random = np.random.Generator(np.random.Philox(_seed(settings.seed, step, *which)))
            return sample(settings.samples, words, random)

        if settings.draws == "shared":
            one = [draw()]
            return one, one
        every = [[draw(rank, way) for way in (0, 1)] for rank in range(self.workers.size)]
        return [one for pair in every for one in pair], every[self.workers.rank]

    def _drop(self, step: int) -> Drop:
        """Inverted dropout, drawn for all rows from the seed and the step."""
        settings = self.settings
        mine = self.workers.mine(settings.rows)

        def drop(x_STBP: Tensor, layer: int) -> Tensor:
            if settings.dropout == 0:
                return x_STBP
            S, T, _, P = x_STBP.shape
            generator = torch.Generator(x_STBP.device)
            generator.manual_seed(_seed(settings.seed, step, 1000 + layer))
            mask_STRP = x_STBP.new_empty(S, T, settings.rows, P)
            mask_STRP.bernoulli_(1 - settings.dropout, generator=generator)
            return x_STBP * mask_STRP[:, :, mine[0] : mine[-1] + 1] / (1 - settings.dropout)

        return drop


def _by_direction(loss: Tensor, nats_N: Tensor) -> Tensor:
    """Both directions' sums, with the gradient of their total."""
    nats_S = nats_N.view(2, -1).sum(1, dtype=torch.float64)
    return nats_S - nats_S.sum() / 2 + loss.double() / 2


def _seed(*parts: int) -> int:
    """One number from several: independent streams for independent parts."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
