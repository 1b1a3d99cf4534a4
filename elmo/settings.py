"""The settings of training, checked as they are made. Light to import: no torch."""

import math
from dataclasses import dataclass

from elmo.errors import ElmoError


@dataclass(frozen=True)
class Optimizer:
    """`name` is adagrad or adamw; the 2018 recipe is adagrad, lr 0.2, accumulator 1, epsilon 0.

    The learning rate rises linearly for `warmup_steps`, then follows `decay` (constant, linear or
    cosine) down to `final_lr` × `lr` at the last step. `clip` bounds the norm of all gradients
    together, before the update (0: no bound). AdamW's `weight_decay` spares the biases.
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
        _one_of("optimizer.name", self.name, ("adagrad", "adamw"))
        _one_of("optimizer.decay", self.decay, ("constant", "linear", "cosine"))
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


@dataclass(frozen=True)
class Training:
    """How a biLM is trained.

    A step reads `rows` × `window` tokens in each direction. `reset` is `sentence` (the LSTM state
    is zeroed where a sentence begins) or `never` (2018). `softmax` is `sampled`, with `samples`
    candidates a step, `full`, or `adaptive` (another model: it stays so in fine-tuning); `draws` is
    `shared` (one draw for both directions and all workers) or `separate` (2018: one for each
    direction and worker). `loss_scale` multiplies the mean loss: 2018 took the gradient of loss ×
    window, which Adagrad's accumulator and the clip notice. Held-out perplexity is taken every
    `evaluate_every` steps and at the end; after `patience` evaluations without a better one
    training stops (0: never). A checkpoint is written every `checkpoint_every` steps, and the last
    `keep` and the best are kept.
    """

    seed: int
    epochs: int
    rows: int
    window: int
    block_sentences: int
    reset: str
    precision: str
    softmax: str
    samples: int
    draws: str
    loss_scale: float
    dropout: float
    optimizer: Optimizer
    evaluate_every: int
    patience: int
    checkpoint_every: int
    keep: int

    def __post_init__(self) -> None:
        _one_of("reset", self.reset, ("sentence", "never"))
        _one_of("precision", self.precision, ("float32", "bfloat16"))
        _one_of("softmax", self.softmax, ("sampled", "full", "adaptive"))
        _one_of("draws", self.draws, ("shared", "separate"))
        for name in ("epochs", "rows", "window", "block_sentences", "samples", "evaluate_every",
                     "checkpoint_every", "keep"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ElmoError(f"{name} must be 1 or more, found {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ElmoError(f"dropout must be at least 0 and below 1, found {self.dropout}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ElmoError(f"{name} must be one of {', '.join(allowed)}, found {value!r}")
