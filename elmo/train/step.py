"""One training step: from a window to an optimizer update, with any number of workers.

The input of a step besides the weights (`StepInput`: candidates, rows, dropout keys) depends only
on the window and the step's number, so it is prepared while the device computes the previous steps
(elmo.train.step_input).

The loss is summed over the predictions of all rows and divided by the number in a full step, so a
token has the same weight in every step, even in the last ones, when some rows have ended. Dropout
is keyed by row, and all workers draw the same candidates. So the result does not depend on the
number of workers.

Shapes: S directions, T time steps, B rows of this worker, N distinct tokens or predictions, K
characters, P projection, L layers, U rows of the word matrix in use, V words.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from elmo.data.stream import StreamPosition, Window, WindowStream
from elmo.errors import ElmoError
from elmo.nn.bilm import BiLM, token_vectors
from elmo.nn.cell import fuse_on_gpu
from elmo.nn.device import device_tensor, prefers_large_operations, start_copy_to_host
from elmo.nn.dropout import dropout_scales
from elmo.nn.encoder import CharacterEncoder
from elmo.nn.lstm import DropoutFunction, LSTMState
from elmo.nn.softmax import Softmax, full_softmax_loss, sampled_softmax_loss
from elmo.settings import TrainingSettings
from elmo.train.optimizer import Optimizer, WordRows, global_norm
from elmo.train.step_input import PreparedStep, StepInput, StepPreparer, read_ahead

Result = TypeVar("Result")
WORD_MATRIX = ("softmax.weight", "softmax.bias")  # a sampled step reads few of their rows


@dataclass(frozen=True)
class WorkerGroup:
    """The group of all workers, as one of them sees it: its rank, their number, and its device.

    The methods combine values of all workers.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def ranks(self) -> range:
        """Return the ranks of all workers."""
        return range(self.size)

    def own_rows(self, rows: int) -> list[int]:
        """Return the numbers of the rows (parallel streams of text) that this worker reads, out of
        the `rows` rows of the batch, which are divided as evenly as possible."""
        if rows < self.size:
            raise ElmoError(f"{rows} rows are too few for {self.size} workers; raise training.rows")
        bounds = [rows * k // self.size for k in (self.rank, self.rank + 1)]
        return list(range(*bounds))

    def sum_over_workers(self, values: Sequence[float]) -> list[float]:
        """Return the element-wise sums of `values` over all workers. All workers must call this
        together, with equally many values."""
        if self.size == 1:
            return list(values)
        buffer = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(buffer)
        return buffer.tolist()

    def call_on_first_worker(self, function: Callable[[], Result]) -> Result:
        """Call a function on the first worker, and return its result, or raise its `ElmoError`, on
        all. All workers must call this together."""
        if self.size == 1:
            return function()
        results: list[Any] = [None]
        if self.rank == 0:
            try:
                results = [function()]
            except ElmoError as error:
                results = [error]
        dist.broadcast_object_list(results, 0, device=self.device)
        if isinstance(results[0], ElmoError):
            raise results[0]
        result: Result = results[0]
        return result

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Copy the values of the first worker's tensors into those of all workers. All workers must
        call this together, with tensors of the same shapes."""
        for tensor in tensors if self.size > 1 else ():
            buffer = tensor.to(self.device)
            dist.broadcast(buffer, 0)
            tensor.copy_(buffer)


class StepFigures:
    """The figures of one training step over all workers' rows: −log p per direction, the number of
    predictions per direction, and the gradient norm.

    The first access waits for the step, but not for later steps. It raises `FloatingPointError` if
    the loss or a gradient is not finite.
    """

    def __init__(self, figures: Tensor, predictions: int, clip: float) -> None:
        self._wait_for_copy = start_copy_to_host(figures)
        self.predictions, self._clip = predictions, clip

    @cached_property
    def _figures(self) -> list[float]:
        figures: list[float] = self._wait_for_copy().tolist()
        if not all(map(math.isfinite, figures)):
            raise FloatingPointError
        return figures

    @property
    def gradient_norm(self) -> float:
        """Return the norm of all gradients together, before clipping."""
        return self._figures[0]

    @property
    def nats_by_direction(self) -> tuple[float, float]:
        """Return −log p in nats, summed over the step's predictions: forward and backward."""
        return self._figures[1], self._figures[2]

    @property
    def was_clipped(self) -> bool:
        """Tell whether the gradients were clipped."""
        return 0 < self._clip < self.gradient_norm


class Stepper:
    """Takes the training steps of one worker: `read_steps` prepares their inputs, and `step` takes
    one.

    It has no state of its own: a step changes its model, softmax and optimizer. Several workers
    must start from the same weights. Each prepares its steps on a thread, in the same order; these
    threads exchange the words that a step uses, through a CPU process group.
    """

    def __init__(
        self,
        bilm: BiLM,
        softmax: Softmax,
        optimizer: Optimizer,
        settings: TrainingSettings,
        workers: WorkerGroup,
    ) -> None:
        self.bilm, self.softmax, self.optimizer = bilm, softmax, optimizer
        self.settings, self.workers = settings, workers
        self.precision = getattr(torch, settings.precision)
        self.predictions = 2 * settings.rows * settings.window
        self._is_compiled = bool(bilm.lstm.compiled)
        if isinstance(bilm.encoder, CharacterEncoder):
            bilm.encoder.compiled = self._is_compiled
        self._reader_group: Any = None
        if workers.size > 1:
            backend = "gloo" if workers.device.type == "cuda" else None
            self._reader_group = dist.new_group(backend=backend)
        should_pad = prefers_large_operations(workers.device)
        self.preparer = StepPreparer(
            settings,
            vocabulary_size=len(softmax.weight),
            layers=bilm.shape.layers + 1,
            rows=workers.own_rows(settings.rows),
            device=workers.device,
            pad=getattr(bilm.encoder, "pad_to_few_shapes", None) if should_pad else None,
            gather=self._gather_words if workers.size > 1 else None,
        )

    def read_steps(
        self, stream: WindowStream, position: StreamPosition, *, step: int
    ) -> Generator[PreparedStep, None, None]:
        """Yield the input of each step, ahead of time, and a function that returns the position
        after it. The first step is `step`, at `position`."""
        is_on_gpu = self.workers.device.type == "cuda" and self._is_compiled
        return read_ahead(
            self.preparer,
            stream,
            position,
            step=step,
            uses_process=is_on_gpu and self.workers.size == 1,
        )

    def step(
        self, window: Window | StepInput, state: LSTMState, *, step: int
    ) -> tuple[StepFigures, LSTMState]:
        """Take step `step` (from 0) with the LSTM state `state` of this worker's rows; return the
        figures and the new state, without waiting for a GPU.

        To save time, pass the `StepInput` that `preparer` makes of the window. The weights change
        even if the loss is not finite: check the figures before you keep the weights.
        """
        if isinstance(window, Window):
            window = self.preparer.prepare(window, step=step)
        step_input = window
        settings, device = self.settings, self.workers.device
        self.bilm.zero_grad(set_to_none=True)
        reset_STB = None
        if step_input.reset_TB is not None:
            reset_STB = device_tensor(step_input.reset_TB, device).expand(2, -1, -1)
        drop = self._make_dropout(step_input.keys_LB)
        characters_NK = device_tensor(step_input.characters_NK, device)
        index_STB = device_tensor(step_input.index_STB, device)
        x_NP = self.bilm.encode(characters_NK, precision=self.precision)
        x_STBP = token_vectors(index_STB, x_NP)
        layer_outputs, next_state = self.bilm.lstm(x_STBP, state, reset_STB=reset_STB, drop=drop)
        h_STBP = drop(layer_outputs[-1], self.bilm.shape.layers)
        loss, nats_S, word_rows, leaves = self._compute_loss(h_STBP, step_input, step)
        with self._gradients_summed():
            torch.autograd.backward(loss * (settings.loss_scale / self.predictions))
        gradients = {
            f"bilm.{name}": parameter.grad
            for name, parameter in self.bilm.named_parameters()
            if parameter.grad is not None
        }
        for name, leaf in leaves.items():
            gradient = leaf.grad
            assert gradient is not None
            if self.workers.size > 1:
                dist.all_reduce(gradient)
            gradients[name] = gradient
        tensors = list(gradients.values())
        if self.workers.size > 1:
            dist.all_reduce(nats_S)
        norm = global_norm(tensors)
        clip_gradients_(tensors, norm, settings.optimizer.clip)
        self.optimizer.update(gradients, step=step, word_rows=word_rows)
        figures = torch.cat([norm[None], nats_S])
        return StepFigures(figures, step_input.predictions, settings.optimizer.clip), next_state

    @contextmanager
    def _gradients_summed(self) -> Iterator[None]:
        """Sum the network's gradients over the workers while a backward pass computes them.

        All workers finish parameters in the same order, and each parameter is summed separately, so
        resumed training gets the same bits.
        """
        if self.workers.size == 1:
            yield
            return
        pending_sums: list[Any] = []

        def start_sum(parameter: Tensor) -> None:
            pending_sums.append(dist.all_reduce(parameter.grad, async_op=True))

        hooks = [
            parameter.register_post_accumulate_grad_hook(start_sum)  # type: ignore[no-untyped-call]
            for parameter in self.bilm.parameters()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        for work in pending_sums:
            work.wait()

    def _compute_loss(
        self, h_STBP: Tensor, step_input: StepInput, step: int
    ) -> tuple[Tensor, Tensor, dict[str, WordRows], dict[str, Tensor]]:
        """Return the summed −log p, its sums by direction (S, detached), the used rows, and the
        leaves.

        The leaves are the tensors that get gradients.
        """
        h_SNP = h_STBP.flatten(1, 2)
        device = h_STBP.device
        if step_input.positions_N is not None:
            h_SNP = h_SNP.index_select(1, device_tensor(step_input.positions_N, device))
        leaves: dict[str, Tensor] = {}
        for name, leaf in self.softmax.named_parameters():
            leaf.grad = None
            leaves[f"softmax.{name}"] = leaf
        if not step_input.draws:
            h_NP, targets_N = (
                h_SNP.flatten(0, 1),
                device_tensor(step_input.targets_SN.reshape(-1), device),
            )
            loss, nats_N = full_softmax_loss(
                h_NP, targets_N, self.softmax.weight, self.softmax.bias
            )
            return loss, _sum_by_direction(nats_N), {}, leaves
        draws, used_rows = step_input.draws, step_input.used_rows
        assert used_rows is not None
        word_rows = WordRows(used_rows.indices, device_tensor(used_rows.host_indices, device))
        for name in WORD_MATRIX:
            self.optimizer.catch_up(name, word_rows.indices, step=step)
        weight_UP = self.softmax.weight.detach()[word_rows.device_indices].requires_grad_()
        bias_U = self.softmax.bias.detach()[word_rows.device_indices].requires_grad_()
        if len(draws) == 1:
            loss, nats_N = sampled_softmax_loss(
                h_SNP.flatten(0, 1),
                weight_UP,
                bias_U,
                draws[0],
                used_rows.rows[0],
                compiled=self._is_compiled,
            )
            nats_S = _sum_by_direction(nats_N)
        else:
            compiled = self._is_compiled
            losses = [
                sampled_softmax_loss(h_NP, weight_UP, bias_U, draw, rows, compiled=compiled)[0]
                for h_NP, draw, rows in zip(h_SNP, draws, used_rows.rows, strict=True)
            ]
            loss, nats_S = losses[0] + losses[1], torch.stack(losses).detach().double()
        leaves = dict(zip(WORD_MATRIX, (weight_UP, bias_U), strict=True))
        return loss, nats_S, dict.fromkeys(WORD_MATRIX, word_rows), leaves

    def _gather_words(self, words: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Exchange between CPUs the distinct words of each worker's rows; return them by worker."""
        max_rows = -(-self.settings.rows // self.workers.size)
        padded_words = torch.full((2 * self.settings.window * max_rows,), -1)
        padded_words[: len(words)] = torch.from_numpy(words)
        words_by_worker = [torch.full_like(padded_words, -1) for _ in self.workers.ranks]
        dist.all_gather(words_by_worker, padded_words, group=self._reader_group)
        return [w.numpy()[w.numpy() >= 0] for w in words_by_worker]

    def _make_dropout(self, keys_LB: Tensor | None) -> DropoutFunction:
        """Return the dropout of this worker's rows, keyed by seed, step, layer and row."""
        if keys_LB is None:
            return lambda x_STBP, layer: x_STBP
        settings = self.settings
        shape = (2, settings.window, keys_LB.shape[1], self.bilm.shape.projection)
        device, make_scales = self.workers.device, dropout_scales
        if self._is_compiled:
            make_scales = fuse_on_gpu(dropout_scales, device)
        scales_LSTBP = make_scales(
            shape, device_tensor(keys_LB, device), settings.dropout, self.precision
        )

        def drop(x_STBP: Tensor, layer: int) -> Tensor:
            return x_STBP * scales_LSTBP[layer]

        return drop


def clip_gradients_(gradients: list[Tensor], norm: Tensor, limit: float) -> None:
    """Scale gradients in place so that their joint norm, `norm`, is at most `limit` (0: no limit),
    without waiting for a GPU."""
    if limit <= 0:
        return
    if prefers_large_operations(norm.device):
        torch._foreach_mul_(gradients, (limit / norm).clamp_(max=1).float())
    elif norm > limit:
        torch._foreach_mul_(gradients, limit / float(norm))


def _sum_by_direction(nats_N: Tensor) -> Tensor:
    """Return the sums of both directions, detached, float64."""
    return nats_N.detach().view(2, -1).sum(1, dtype=torch.float64)
