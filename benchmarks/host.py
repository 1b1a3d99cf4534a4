"""What the host's main thread does in a training step beside the arithmetic: milliseconds.

    python -m benchmarks.host [--words 793471] [--rows 128] [--samples 8192] [--steps 40]
        [--repeat 5]

A GPU computes while its host finds candidates, the rows of the word matrix in use and where the
targets are among them; what the main thread spends on that, a small step waits for. Each side takes
the same steps of a network without width, whose products are left out: with the windows prepared by
the main thread within the step, and by the prefetching one ahead of it. Time is that of the main
thread on a processor alone, so that a busy machine changes it little. Prints JSON.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import show
from benchmarks.training_sides import ADAGRAD, SMALL, recipe_2018, stepper_of
from elmo.data.stream import Window, prefetch
from elmo.nn import softmax as softmax_module
from elmo.nn.lstm import LSTMState
from elmo.settings import OptimizerSettings
from elmo.train.step import Stepper, WorkerGroup

WINDOW = 20
ADAMW = replace(ADAGRAD, name="adamw", lr=0.003, beta1=0.9, beta2=0.99, epsilon=1e-8)
NARROW = replace(SMALL, char_dim=1, filters=((1, 1),), highways=0, cells=1, projection=1, layers=1)


def main() -> None:
    """Run the sides in turn and print the figures."""
    options = _options()
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    windows = [_window(options, seed) for seed in range(options.steps)]
    for recipe in (ADAGRAD, ADAMW):
        sides: dict[str, list[float]] = {"in the step": [], "ahead": []}
        for _ in range(options.repeat):
            for side, milliseconds in sides.items():
                milliseconds.append(_measured(options, recipe, windows, ahead=side == "ahead"))
        figures[recipe.name] = {
            side: {"ms_a_step": round(median(each), 2), "runs": [round(ms, 2) for ms in each]}
            for side, each in sides.items()
        }
    show(figures)


def _measured(
    options: argparse.Namespace, recipe: OptimizerSettings, windows: list[Window], *, ahead: bool
) -> float:
    stepper = _stepper(options, recipe)
    state = stepper.bilm.lstm.zero_state(options.rows)

    def given() -> Iterator[Any]:
        for number, window in enumerate(windows):
            yield stepper.prepare(window, step=number) if ahead else window

    with _no_arithmetic(), closing(prefetch(given())) as ready:
        stepper.step(next(ready), state, step=0)
        began = time.thread_time()
        for number, each in enumerate(ready, 1):
            stepper.step(each, state, step=number)
        return 1000 * (time.thread_time() - began) / (len(windows) - 1)


def _stepper(options: argparse.Namespace, recipe: OptimizerSettings) -> Stepper:
    settings = replace(
        recipe_2018("float32", rows=options.rows, window=WINDOW),
        samples=options.samples,
        loss_scale=1.0,
        optimizer=recipe,
    )
    stepper = stepper_of(NARROW, settings, options.words, WorkerGroup())
    stepper.body = _Body()
    return stepper


class _Body(nn.Module):
    """In place of the network: outputs that cost nothing."""

    def forward(
        self, _: Tensor, index_STB: Tensor, state: LSTMState, *__: Any
    ) -> tuple[Any, LSTMState]:
        """Zeros of the shape of the top layer."""
        return torch.zeros(*index_STB.shape, 1, requires_grad=True), state


class _NoLoss(torch.autograd.Function):
    """In place of the softmax: a loss of 0 whose gradients are what they are for no prediction."""

    @staticmethod
    def forward(
        ctx: Any, h_NP: Tensor, weight_UP: Tensor, bias_U: Tensor, *_: Any
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(h_NP, weight_UP, bias_U)
        return h_NP.new_zeros(()), h_NP.new_zeros(len(h_NP))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *(torch.zeros_like(one) for one in ctx.saved_tensors), *(None,) * 5


@contextmanager
def _no_arithmetic() -> Iterator[None]:
    before = softmax_module._Loss
    softmax_module._Loss = _NoLoss  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        softmax_module._Loss = before  # type: ignore[misc]


def _window(options: argparse.Namespace, seed: int) -> Window:
    """Targets as frequent as the candidates are drawn: log-uniform."""
    random = np.random.default_rng(seed)
    shape = (2, WINDOW, options.rows)
    words = np.exp(random.random(shape) * np.log(options.words + 1.0)).astype(np.int64) - 1
    words = np.minimum(words, options.words - 1)
    distinct, index = np.unique(words, return_inverse=True)
    return Window(
        index_STB=index.reshape(shape),
        targets_STB=words,
        mask_TB=np.ones(shape[1:], bool),
        reset_TB=np.zeros(shape[1:], bool),
        characters_NK=np.zeros((len(distinct), 50), np.int32),
        bytes_N=np.ones(len(distinct), np.int64),
        words=distinct,
        count=2 * WINDOW * options.rows,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--words", type=int, default=793_471)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
