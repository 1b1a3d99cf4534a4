"""One training step: a window in, one optimizer update out, the same for any number of workers.

The loss is summed over the predictions of all rows and divided by how many a full step has (so that
a token weighs the same in every step, the last ones too, when rows run dry); dropout is keyed by
row, and all workers draw the same candidates. So one, two or three workers take the same step.

Shapes: S directions, T time steps, B rows of this worker, N distinct tokens or predictions, K
characters, P projection, L layers, U rows of the word matrix in use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from elmo.data.stream import Window
from elmo.errors import ElmoError
from elmo.nn.bilm import BiLM, look_up
from elmo.nn.device import sent, wants_few_launches
from elmo.nn.dropout import dropout_scales, row_keys
from elmo.nn.encoder import CharacterEncoder
from elmo.nn.lstm import Drop, State
from elmo.nn.softmax import (
    Candidates,
    Softmax,
    full_loss,
    sample,
    sampled_loss,
)
from elmo.settings import Training
from elmo.train.optimizer import Optimizer, global_norm

WORD_MATRIX = ("softmax.weight", "softmax.bias")  # a sampled step uses few of their rows


@dataclass(frozen=True)
class Workers:
    """Who takes the steps: this worker's number among all of them, and where it computes."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def ranks(self) -> range:
        """The numbers of all workers."""
        return range(self.size)

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

    def union(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The distinct numbers of all workers, ascending; each brings its own, distinct."""
        if self.size == 1:
            return numbers
        counts = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.size)]
        dist.all_gather(counts, torch.tensor([len(numbers)], device=self.device))
        longest = max(int(count) for count in counts)
        padded = torch.zeros(longest, dtype=torch.int64, device=self.device)
        padded[: len(numbers)] = torch.from_numpy(numbers)
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded)
        own = [part[: int(count)] for part, count in zip(parts, counts, strict=True)]
        return np.unique(torch.cat(own).cpu().numpy())


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
        characters_NK: Tensor,
        index_STB: Tensor,
        state: State,
        reset_STB: Tensor | None,
        drop: Drop,
    ) -> tuple[Tensor, State]:
        """The dropped top layer (S, T, B, P) and the state after the window."""
        x_NP = self.bilm.encode(characters_NK, precision=self.precision)
        x_STBP = look_up(index_STB, x_NP)
        ys, state = self.bilm.lstm(x_STBP, state, reset_STB=reset_STB, drop=drop)
        return drop(ys[-1], self.bilm.config.layers), state


class Stepper:
    """Takes steps with one model; everything it changes is in the model, softmax and optimizer."""

    def __init__(
        self,
        bilm: BiLM,
        softmax: Softmax,
        optimizer: Optimizer,
        settings: Training,
        workers: Workers,
    ) -> None:
        self.bilm, self.softmax, self.optimizer = bilm, softmax, optimizer
        self.settings, self.workers = settings, workers
        body = Body(bilm, getattr(torch, settings.precision))
        self.body: nn.Module = body
        self.predictions = 2 * settings.rows * settings.window
        if workers.size > 1 and any(p.requires_grad for p in bilm.parameters()):
            self.body = nn.parallel.DistributedDataParallel(body, gradient_as_bucket_view=True)

    def step(self, window: Window, state: State, *, step: int) -> tuple[Measured, State]:
        """Take step number `step` (from 0); return what it showed and the new state.

        Raises `FloatingPointError` where the loss or a gradient is not finite; then nothing was
        updated.
        """
        settings = self.settings
        device = self.workers.device
        self.body.zero_grad(set_to_none=True)
        reset_STB = None
        if settings.reset == "sentence":
            reset_STB = sent(window.reset_TB, device).expand(2, -1, -1)
        characters_NK = window.characters_NK
        if wants_few_launches(device) and isinstance(self.bilm.encoder, CharacterEncoder):
            characters_NK = self.bilm.encoder.padded(characters_NK)
        h_STBP, after = self.body(
            sent(characters_NK, device),
            sent(window.index_STB, device),
            state,
            reset_STB,
            self._drop(step),
        )
        loss, nats_S, word_rows, leaves = self._loss(h_STBP, window, step)
        torch.autograd.backward(loss * (settings.loss_scale * self.workers.size / self.predictions))
        gradients = {
            f"bilm.{name}": parameter.grad
            for name, parameter in self.bilm.named_parameters()
            if parameter.grad is not None
        }
        for name, leaf in leaves.items():
            if self.optimizer.lr_of.get(name) == 0:
                continue
            gradient = leaf.grad
            assert gradient is not None
            if self.workers.size > 1:
                dist.all_reduce(gradient)
                gradient /= self.workers.size
            gradients[name] = gradient
        tensors = list(gradients.values())
        if self.workers.size > 1:
            dist.all_reduce(nats_S)
        # The one value that the host waits for in a step.
        norm, *nats = torch.cat([global_norm(tensors)[None], nats_S]).tolist()
        if not (math.isfinite(norm) and math.isfinite(sum(nats))):
            raise FloatingPointError
        clipped = 0 < settings.optimizer.clip < norm
        if clipped:
            torch._foreach_mul_(tensors, settings.optimizer.clip / norm)
        self.optimizer.update(gradients, step=step, word_rows=word_rows)
        return Measured((nats[0], nats[1]), window.count // 2, norm, clipped), after

    def _loss(
        self, h_STBP: Tensor, window: Window, step: int
    ) -> tuple[Tensor, Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Summed −log p, with its gradient and by direction (S, detached); the rows of the word
        matrix in use; the leaves that get gradients."""
        h_SNP = h_STBP.flatten(1, 2)
        device = h_STBP.device
        chosen_SN = window.targets_STB.reshape(2, -1)
        if not window.mask_TB.all():
            on_N = np.flatnonzero(window.mask_TB)
            h_SNP, chosen_SN = h_SNP.index_select(1, sent(on_N, device)), chosen_SN[:, on_N]
        targets_SN = sent(chosen_SN, device)
        leaves: dict[str, Tensor] = {}
        for name, leaf in self.softmax.named_parameters():
            leaf.grad = None
            leaves[f"softmax.{name}"] = leaf
        weight, bias = self.softmax.weight, self.softmax.bias
        if self.settings.softmax == "full":
            loss, nats_N = full_loss(h_SNP.flatten(0, 1), targets_SN.flatten(), weight, bias)
            return loss, _by_direction(nats_N), {}, leaves
        draws = self._draw(step, words=len(weight))
        words = self.workers.union(window.words)
        word_rows = np.unique(np.concatenate([words, *(draw.words for draw in draws)]))
        used = torch.from_numpy(word_rows)
        for name in WORD_MATRIX:
            self.optimizer.catch_up(name, used, step=step)
        on_device = sent(word_rows, device)
        weight_UP = weight.detach()[on_device].requires_grad_()
        bias_U = bias.detach()[on_device].requires_grad_()
        if len(draws) == 1:
            h_NP, targets_N = h_SNP.flatten(0, 1), chosen_SN.ravel()
            loss, nats_N = sampled_loss(
                h_NP, targets_N, weight_UP, bias_U, word_rows=word_rows, candidates=draws[0]
            )
            nats_S = _by_direction(nats_N)
        else:
            both = [
                sampled_loss(h_NP, t_N, weight_UP, bias_U, word_rows=word_rows, candidates=draw)[0]
                for h_NP, t_N, draw in zip(h_SNP, chosen_SN, draws, strict=True)
            ]
            loss, nats_S = both[0] + both[1], torch.stack(both).detach().double()
        leaves = dict(zip(WORD_MATRIX, (weight_UP, bias_U), strict=True))
        return loss, nats_S, dict.fromkeys(WORD_MATRIX, used), leaves

    def _draw(self, step: int, *, words: int) -> list[Candidates]:
        """One draw for both directions, or one for each; the same on all workers."""
        settings = self.settings

        def draw(*which: int) -> Candidates:
            random = np.random.Generator(np.random.Philox(_seed(settings.seed, step, *which)))
            return sample(settings.samples, words, random)

        if settings.draws == "shared":
            return [draw()]
        return [draw(0, way) for way in (0, 1)]

    def _drop(self, step: int) -> Drop:
        """Dropout of this worker's rows, keyed by the seed, the step, the layer and the row."""
        settings = self.settings
        if settings.dropout == 0:
            return lambda x_STBP, layer: x_STBP
        mine, layers = self.workers.mine(settings.rows), self.bilm.config.layers + 1
        keys = [row_keys(settings.seed, step, layer, rows=mine) for layer in range(layers)]
        shape = (2, settings.window, len(mine), self.bilm.config.projection)
        keys_LB = torch.stack(keys).to(self.workers.device)
        scales_LSTBP = dropout_scales(shape, keys_LB, settings.dropout)

        def drop(x_STBP: Tensor, layer: int) -> Tensor:
            return x_STBP * scales_LSTBP[layer].to(x_STBP.dtype)

        return drop


def _by_direction(nats_N: Tensor) -> Tensor:
    """The sums of both directions, detached, float64."""
    return nats_N.detach().view(2, -1).sum(1, dtype=torch.float64)


def _seed(*parts: int) -> int:
    """One number from several: independent streams for independent parts."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
