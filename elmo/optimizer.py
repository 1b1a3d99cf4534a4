"""Adagrad and AdamW over dense parameters and over rows of the word matrix alike.

PyTorch's own optimizers update a whole matrix; here only the rows that a step used are read, moved
and written, in the matrix and in the optimizer's state. For Adagrad that equals the dense result.
For AdamW a row that is not used keeps its moments and is not decayed until it is used again.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from elmo import settings as of


class Optimizer:
    """Updates tensors in place from gradients; its own state is `slots`, tensors by name."""

    def __init__(self, settings: of.Optimizer, parameters: dict[str, Tensor]) -> None:
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
    norms = [torch.linalg.vector_norm(gradient.float()).double() for gradient in gradients]
    return float(torch.linalg.vector_norm(torch.stack(norms)))
