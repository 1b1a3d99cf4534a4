"""Adagrad and AdamW over dense parameters and over rows of the word matrix alike.

PyTorch's own optimizers update a whole matrix; here only the rows that a step used are read, moved
and written, in the matrix and in the optimizer's state. For Adagrad that equals the dense result.
For AdamW a row that is not used keeps its moments and is not decayed until it is used again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from elmo.errors import ElmoError


@dataclass(frozen=True)
class Settings:
    """`name` is adagrad or adamw; the 2018 recipe is adagrad, lr 0.2, accumulator 1, epsilon 0.

    The learning rate rises linearly for `warmup_steps`, then follows `decay` (constant, linear or
    cosine) down to `final_lr` times `lr` at the last step. `clip` bounds the norm of all gradients
    together, before the update (0: no bound). `loss_scale` multiplies the mean loss: 2018 took the
    gradient of loss × window, which matters to Adagrad's accumulator and to the clip.
    """

    name: str
    lr: float
    warmup_steps: int
    decay: str
    final_lr: float
    clip: float
    accumulator: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float

    def __post_init__(self) -> None:
        if self.name not in ("adagrad", "adamw"):
            raise ElmoError(f"optimizer.name must be adagrad or adamw, found {self.name!r}")
        if self.decay not in ("constant", "linear", "cosine"):
            raise ElmoError(
                f"optimizer.decay must be constant, linear or cosine, found {self.decay!r}"
            )
        if not self.lr > 0:
            raise ElmoError(f"optimizer.lr must be above 0, found {self.lr}")

    def lr_at(self, step: int, steps: int) -> float:
        """The learning rate of a step, the first being 0, of `steps` in all."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        if self.decay == "constant":
            return self.lr
        done = min(1.0, (step - self.warmup_steps) / max(1, steps - self.warmup_steps))
        left = 1 - done if self.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.lr * (self.final_lr + (1 - self.final_lr) * left)


class Optimizer:
    """Updates tensors in place from gradients; its own state is `slots`, tensors by name."""

    def __init__(self, settings: Settings, parameters: dict[str, Tensor]) -> None:
        self.settings = settings
        self.parameters = parameters
        self.slots: dict[str, Tensor] = {}
        first = settings.accumulator if settings.name == "adagrad" else 0.0
        for name, parameter in parameters.items():
            for slot in ("sum",) if settings.name == "adagrad" else ("mean", "square"):
                self.slots[f"{name}.{slot}"] = torch.full_like(parameter, first)

    @torch.no_grad()
    def update(
        self,
        gradients: dict[str, Tensor],
        *,
        step: int,
        lr: float,
        lr_of: dict[str, float],
        rows: dict[str, Tensor],
    ) -> None:
        """Take one step, the first being 0.

        `rows[name]` are the rows of a parameter that `gradients[name]` stands for, where it does
        not stand for all. `lr_of[name]` multiplies the learning rate of a parameter.
        """
        for name, gradient in gradients.items():
            rate = lr * lr_of.get(name, 1.0)
            if rate == 0:
                continue
            parameter, slots = self.parameters[name], self._slots(name)
            if name in rows:
                at = rows[name]
                used = [parameter[at], *(slot[at] for slot in slots)]
                self._move(used[0], gradient, used[1:], step, rate)
                parameter[at] = used[0]
                for slot, moved in zip(slots, used[1:], strict=True):
                    slot[at] = moved
            else:
                self._move(parameter, gradient, slots, step, rate)

    def _slots(self, name: str) -> list[Tensor]:
        kinds = ("sum",) if self.settings.name == "adagrad" else ("mean", "square")
        return [self.slots[f"{name}.{kind}"] for kind in kinds]

    def _move(
        self, parameter: Tensor, gradient: Tensor, slots: list[Tensor], step: int, lr: float
    ) -> None:
        settings = self.settings
        if settings.name == "adagrad":
            slots[0].addcmul_(gradient, gradient)
            parameter.addcdiv_(gradient, slots[0].sqrt().add_(settings.epsilon), value=-lr)
            return
        mean, square = slots
        if parameter.dim() > 1:
            parameter.mul_(1 - lr * settings.weight_decay)
        mean.lerp_(gradient, 1 - settings.beta1)
        square.mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
        first = 1 - settings.beta1 ** (step + 1)
        second = 1 - settings.beta2 ** (step + 1)
        scale = square.sqrt().div_(math.sqrt(second)).add_(settings.epsilon)
        parameter.addcdiv_(mean, scale, value=-lr / first)


@torch.no_grad()
def global_norm(gradients: Iterable[Tensor]) -> float:
    """The norm of all gradients together."""
    squares = [gradient.float().pow(2).sum(dtype=torch.float64) for gradient in gradients]
    return float(torch.stack(squares).sum().sqrt())
