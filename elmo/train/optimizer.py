"""Adagrad and AdamW, for dense parameters and for the used rows of the word matrix.

PyTorch's optimizers update a whole matrix. Here, a step reads and writes only the rows that it
uses, in the matrix and in the optimizer's state. For Adagrad, this equals the dense update. With
AdamW, a row would also move and decay in steps that do not use it: `catch_up` applies those moves
when the row is next used, which equals the dense update except for epsilon.

The schedule of the learning rate is `OptimizerSettings.learning_rate_at` in `elmo.settings`.

Shapes: R word rows.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.nn.device import device_tensor
from elmo.settings import OptimizerSettings

MIN_SHARE = 1e-12  # moves below this share of an unused row's first move count as 0
WORD_ROWS_AT_ONCE = 1 << 16  # rows caught up at a time; limits memory


@dataclass(frozen=True)
class WordRows:
    """The distinct indices of the word-matrix rows that a step uses, on the host and on the device.

    The word matrix is the softmax's weights and biases, one row per word.
    """

    indices: npt.NDArray[np.int64]
    device_indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)


class Optimizer:
    """Adagrad or AdamW, which updates the tensors `parameters` in place; its state is `slots`,
    tensors by name.

    Training takes `steps` steps. Parameters named in `word_matrix` have one row per word; a step
    reads and updates only the rows that it uses. AdamW would also move and decay the other rows, so
    these miss their moves until `catch_up` applies them. Call `catch_up` before a step reads rows,
    and `catch_up_all` after the last step.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        parameters: dict[str, Tensor],
        *,
        steps: int,
        word_matrix: Iterable[str] = (),
    ) -> None:
        self.settings, self.parameters, self.steps = settings, parameters, steps
        self.slots: dict[str, Tensor] = {}
        initial_value = settings.accumulator if settings.name == "adagrad" else 0.0
        for name, parameter in parameters.items():
            for moment in self._moment_names():
                self.slots[f"{name}.{moment}"] = torch.full_like(parameter, initial_value)
        self._missed_steps: dict[str, _MissedSteps] = {}
        if settings.name == "adamw":
            for name in word_matrix:
                # The number of steps each row has taken; on the CPU, where rows are chosen.
                self.slots[f"{name}.taken"] = torch.zeros(len(parameters[name]), dtype=torch.int64)
                decay = settings.weight_decay if has_weight_decay(name) else 0.0
                self._missed_steps[name] = _MissedSteps(settings, decay, steps)

    @torch.no_grad()
    def update(
        self, gradients: dict[str, Tensor], *, step: int, word_rows: dict[str, WordRows]
    ) -> None:
        """Take step `step` (from 0): update each parameter that has a gradient in `gradients`, by
        name.

        If a gradient covers only the rows of the words that the step uses, `word_rows[name]` has
        these rows; call `catch_up` on them first.
        """
        updates_by_decay: dict[float, list[_TensorUpdate]] = {}
        rows_to_write_back = []
        for name, gradient in gradients.items():
            tensors = [
                self.parameters[name],
                *(self.slots[f"{name}.{moment}"] for moment in self._moment_names()),
            ]
            decay = self.settings.weight_decay if has_weight_decay(name) else 0.0
            row_tensors = tensors
            if name in word_rows:
                row_indices = word_rows[name].device_indices
                row_tensors = [tensor[row_indices] for tensor in tensors]
                rows_to_write_back.append((tensors, row_indices, row_tensors))
                if name in self._missed_steps:
                    self.slots[f"{name}.taken"].numpy()[word_rows[name].indices] = step + 1
            updates_by_decay.setdefault(decay, []).append(_TensorUpdate(gradient, *row_tensors))
        for decay, updates in updates_by_decay.items():
            self._apply_updates(updates, step, decay)
        for tensors, row_indices, row_tensors in rows_to_write_back:
            for tensor, row_values in zip(tensors, row_tensors, strict=True):
                tensor[row_indices] = row_values

    def catch_up_all(self, *, step: int, updates_state: bool = True) -> None:
        """Apply to every row of the word matrix the moves that it missed in the steps before `step`
        that did not use it.

        Call this after the last step, with the number of steps taken, before the weights are saved
        or used. If `updates_state` is false, only the weights change. With Adagrad, nothing is
        missed.
        """
        for name in self._missed_steps:
            words = len(self.parameters[name])
            for start in range(0, words, WORD_ROWS_AT_ONCE):
                indices = np.arange(start, min(words, start + WORD_ROWS_AT_ONCE))
                self.catch_up(name, indices, step=step, updates_state=updates_state)

    @contextmanager
    def temporarily_caught_up(self, *, step: int) -> Iterator[None]:
        """Apply to all weights the moves that they missed before step `step`, for an evaluation in
        the block; then restore the weights.

        Otherwise evaluations would change the result, because rounding depends on how often a row
        is caught up.
        """
        saved_parameters = {name: self.parameters[name].clone() for name in self._missed_steps}
        self.catch_up_all(step=step, updates_state=False)
        try:
            yield
        finally:
            for name, value in saved_parameters.items():
                self.parameters[name].copy_(value)

    @torch.no_grad()
    def catch_up(
        self, name: str, word_rows: npt.NDArray[np.int64], *, step: int, updates_state: bool = True
    ) -> None:
        """Bring the rows `word_rows` (indices) of the parameter `name` up to date; call this before
        step `step` reads them.

        AdamW moves and decays a row in every step; for the steps that did not use it, this is
        applied here at once. If `updates_state` is false, only the weights change. With Adagrad,
        nothing is missed.
        """
        if name not in self._missed_steps:
            return
        parameter, last_steps = self.parameters[name], self.slots[f"{name}.taken"].numpy()
        rows_R = word_rows[last_steps[word_rows] < step]
        if len(rows_R) == 0:
            return
        row_indices = device_tensor(rows_R, parameter.device)
        mean, square = (self.slots[f"{name}.{moment}"] for moment in self._moment_names())
        effect = self._missed_steps[name].compute_effect(last_steps[rows_R], step)
        factors = np.stack(effect).astype(np.float32)
        factors_4R = device_tensor(factors, parameter.device).to(parameter.dtype)
        decay, move, mean_share, square_share = factors_4R.view(4, -1, *[1] * (parameter.dim() - 1))
        mean_R, square_R = mean[row_indices], square[row_indices]
        scale = square_R.sqrt().add_(self.settings.epsilon).clamp_min_(torch.finfo().tiny)
        parameter[row_indices] = parameter[row_indices] * decay - mean_R / scale * move
        if updates_state:
            mean[row_indices], square[row_indices] = mean_R * mean_share, square_R * square_share
            last_steps[rows_R] = step

    def _moment_names(self) -> tuple[str, ...]:
        return ("sum",) if self.settings.name == "adagrad" else ("mean", "square")

    def _apply_updates(self, updates: list["_TensorUpdate"], step: int, decay: float) -> None:
        """Update all tensors with the same decay together, in few operations."""
        settings, lr = self.settings, self.settings.learning_rate_at(step, self.steps)
        gradients = [update.gradient for update in updates]
        parameters = [update.parameter for update in updates]
        if settings.name == "adagrad":
            sums = [update.mean_or_sum for update in updates]
            torch._foreach_addcmul_(sums, gradients, gradients)
            scales = torch._foreach_sqrt(sums)
            if settings.epsilon:
                torch._foreach_add_(scales, settings.epsilon)
            torch._foreach_addcdiv_(parameters, gradients, scales, value=-lr)
            return
        means = [update.mean_or_sum for update in updates]
        squares = [update.mean_square for update in updates if update.mean_square is not None]
        if decay:
            torch._foreach_mul_(parameters, 1 - lr * decay)
        torch._foreach_lerp_(means, gradients, 1 - settings.beta1)
        torch._foreach_mul_(squares, settings.beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - settings.beta2)
        mean_correction = 1 - settings.beta1 ** (step + 1)
        square_correction = 1 - settings.beta2 ** (step + 1)
        scales = torch._foreach_sqrt(squares)
        torch._foreach_div_(scales, math.sqrt(square_correction))
        torch._foreach_add_(scales, settings.epsilon)
        torch._foreach_addcdiv_(parameters, means, scales, value=-lr / mean_correction)


class _TensorUpdate(NamedTuple):
    """A gradient, the tensor it updates, and the optimizer's state of that tensor."""

    gradient: Tensor
    parameter: Tensor
    mean_or_sum: Tensor
    mean_square: Tensor | None = None


class _MissedSteps:
    """The effect of AdamW on a row during steps that do not use it: decay, and moves by momentum.

    With zero gradients, the mean shrinks by β1 and the square by β2 per step, so a row's moves are
    multiples of mean / √square. The factor depends on the step in which the row was last used.
    Moves shrink with (β1 / √β2) to the power of the missed steps, so a new step changes only the
    factors of the last few steps.
    """

    def __init__(self, settings: OptimizerSettings, decay: float, steps: int) -> None:
        self.settings, self.decay, self.steps = settings, decay, steps
        self.ratio = settings.beta1 / math.sqrt(settings.beta2) if settings.beta1 > 0 else 0.0
        self._restart()
        self.lookback = 1 + math.ceil(math.log(MIN_SHARE) / math.log(max(self.ratio, MIN_SHARE)))

    def _restart(self) -> None:
        # At t: the log of the share of a weight that decay leaves until step t.
        self._log_decay = np.zeros(1)
        # At t: the moves since step t, without decay.
        self._moves = np.zeros(1)
        self._steps = 0

    def compute_effect(
        self, last_step_R: npt.NDArray[np.int64], step: int
    ) -> tuple[npt.NDArray[np.float64], ...]:
        """Return the effect on rows last used in steps `last_step_R`.

        These are the remaining share of the weight, the multiple of mean / √square to subtract, and
        the remaining shares of the mean and the square.
        """
        if step < self._steps:  # training has returned to its best weights
            self._restart()
        while self._steps < step:
            self._add_step()
        decay_R = np.exp(self._log_decay[step] - self._log_decay[last_step_R])
        missed_steps_R = (step - last_step_R).astype(np.float64)
        shares = self.settings.beta1**missed_steps_R, self.settings.beta2**missed_steps_R
        return decay_R, decay_R * self._moves[last_step_R], *shares

    def _add_step(self) -> None:
        """Add the next step to the moves of rows last used in each earlier step."""
        step, settings = self._steps, self.settings
        lr = settings.learning_rate_at(step, self.steps)
        if lr * self.decay >= 1:
            raise FloatingPointError("a step that decays weights beyond 0")
        if step + 2 > len(self._moves):
            self._log_decay = np.resize(self._log_decay, 2 * step + 16)
            self._moves = np.resize(self._moves, 2 * step + 16)
        self._log_decay[step + 1] = self._log_decay[step] + math.log1p(-lr * self.decay)
        self._moves[step] = self._moves[step + 1] = 0.0
        first_step = max(0, step + 1 - self.lookback)
        powers = self.ratio ** np.arange(step + 1 - first_step, 0, -1, dtype=np.float64)
        mean_correction = 1 - settings.beta1 ** (step + 1)
        square_correction = 1 - settings.beta2 ** (step + 1)
        step_size = lr * math.sqrt(square_correction) / mean_correction
        earlier_steps = slice(first_step, step + 1)
        growth = np.exp(self._log_decay[earlier_steps] - self._log_decay[step + 1])
        self._moves[earlier_steps] += step_size * powers * growth
        self._steps = step + 1


def has_weight_decay(name: str) -> bool:
    """Tell whether weight decay applies to a parameter, by its name: to all except biases."""
    return not any(part == "bias" or part.endswith("_bias") for part in name.split("."))


@torch.no_grad()
def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, float64."""
    norms = torch.stack(torch._foreach_norm([gradient.float() for gradient in gradients]))
    return torch.linalg.vector_norm(norms.double())
