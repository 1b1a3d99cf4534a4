"""The implementations that benchmarks.training compares: ours, plain autograd, torch.nn.LSTM.

Shapes: S directions, T steps, B rows, N tokens, K characters, P projection.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.lm_text import prepare as prepare_text
from elmo.data.characters import Characters
from elmo.data.stream import Window, WindowStream
from elmo.nn.bilm import BiLM, token_vectors
from elmo.nn.softmax import Softmax, new_softmax, sample_candidates
from elmo.settings import ModelShape, TrainingSettings
from elmo.settings import OptimizerSettings as Recipe
from elmo.train.optimizer import Optimizer
from elmo.train.step import WORD_MATRIX, Stepper, WorkerGroup

SMALL = ModelShape(
    char_dim=16,
    filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
    activation="relu",
    highways=1,
    cells=1024,
    projection=128,
    layers=2,
    cell_clip=3.0,
    projection_clip=3.0,
    skip=True,
    input_words=None,
)
NETWORKS = {
    "small": SMALL,
    "original": replace(SMALL, highways=2, cells=4096, projection=512),
    "default": replace(SMALL, filters=(*SMALL.filters[:4], (5, 128)), cells=512),
    "tiny": replace(SMALL, filters=SMALL.filters[:2], cells=16, projection=8),  # for dry runs
}
ADAGRAD = Recipe(
    name="adagrad",
    lr=0.2,
    warmup_steps=0,
    decay="constant",
    final_lr=1.0,
    clip=10.0,
    accumulator=1.0,
    beta1=0.0,
    beta2=0.0,
    epsilon=0.0,
    weight_decay=0.0,
)
SAMPLES = 8192
Step = Callable[[Window, int], Any]


def prepare_steps(
    side: str,
    precision: str,
    folder: Path,
    *,
    network: str,
    rows: int,
    window: int,
    count: int,
    rank: int,
    size: int,
) -> tuple[list[Window], Step]:
    """The first windows of the text, and a function that takes a step."""
    workers = WorkerGroup(rank, size)
    stream = stream_of(folder / "shards", folder / "text", workers, rows=rows, window=window)
    windows = [window for window, _ in islice(stream.windows(stream.first_position()), count)]
    vocabulary = stream.vocabulary
    recipe = recipe_2018(precision, rows=rows, window=window)
    config = NETWORKS[network]
    bilm = BiLM(config, characters=Characters().size)
    bilm.reset_parameters(1)
    softmax = new_softmax(len(vocabulary), config.projection, seed=2)
    if side == "ours":
        return windows, _our_step(bilm, softmax, recipe, workers)
    body = _Fused(bilm) if side == "nn.LSTM" else _Plain(bilm)
    return windows, _plain(body, softmax, recipe)


def stream_of(
    shards: Path, text: Path, workers: WorkerGroup, *, rows: int, window: int
) -> WindowStream:
    """The text as windows, read three times; its shards are written once."""
    return WindowStream(
        *prepare_text(shards, train=text, heldout=text),
        Characters().encode,
        split="train",
        rows=rows,
        window=window,
        block_sentences=64,
        epochs=3,
        seed=1,
        own_rows=workers.own_rows(rows),
    )


def recipe_2018(precision: Any, *, rows: int, window: int) -> TrainingSettings:
    """The recipe of 2018, without evaluations."""
    return TrainingSettings(
        seed=1,
        epochs=1,
        rows=rows,
        window=window,
        block_sentences=64,
        reset="never",
        precision=precision,
        softmax="sampled",
        samples=SAMPLES,
        draws="shared",
        loss_scale=float(window),
        dropout=0.1,
        optimizer=ADAGRAD,
        evaluate_every=1,
        evaluate_tokens=0,
        patience=0,
    )


def embedding_flop(shape: ModelShape, *, types: float = 0.2, characters: int = 50) -> float:
    """Floating-point operations of a token's vectors; `types` is the share of distinct tokens."""
    convolutions = sum(
        count * width * shape.char_dim * (characters - width + 1) for width, count in shape.filters
    )
    width = sum(count for _, count in shape.filters)
    encoder = convolutions + shape.highways * 2 * width**2 + width * shape.projection
    cell = 4 * shape.cells * 2 * shape.projection + shape.cells * shape.projection
    return 2 * (2 * shape.layers * cell + types * encoder)


class _Operations(TorchDispatchMode):
    """Counts operations that are no views, and the bytes of the tensors they read and write."""

    operations = traffic = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, result))
            self.operations += 1
            self.traffic += sum(leaf.nbytes for leaf in leaves if torch.is_tensor(leaf))
        return result


def count(step: Step, window: Window, number: int) -> tuple[int, int, int]:
    """Floating-point operations of the matrix products of one step, backward pass included; all
    operations; the bytes that these read and write."""

    def in_place(_: Any, a: Any, b: Any, **__: Any) -> int:
        return 2 * a[0] * a[1] * a[2] * b[2]

    def linear(x: Any, weight: Any, *_: Any, **__: Any) -> int:
        return 2 * x[0] * x[1] * weight[0]

    formulas = {torch.ops.aten.baddbmm_: in_place, torch.ops.mkldnn._linear_pointwise: linear}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter, _Operations() as work:
        step(window, number)
    return counter.get_total_flops(), work.operations, work.traffic


def _our_step(bilm: BiLM, softmax: Softmax, recipe: TrainingSettings, workers: WorkerGroup) -> Step:
    stepper = _make_stepper(bilm, softmax, recipe, workers)
    state = bilm.lstm.zero_state(len(workers.own_rows(recipe.rows)))

    def step(window: Window, number: int) -> None:
        nonlocal state
        _, state = stepper.step(window, state, step=number)

    return step


def stepper_of(
    config: ModelShape, recipe: TrainingSettings, words: int, workers: WorkerGroup
) -> Stepper:
    """New weights on the workers' device, compiled as in a long training."""
    bilm, softmax = BiLM(config, characters=Characters().size), Softmax(words, config.projection)
    bilm.lstm.compiled = True
    bilm.reset_parameters(1)
    softmax.reset_parameters(2)
    return _make_stepper(bilm.to(workers.device), softmax.to(workers.device), recipe, workers)


def _make_stepper(
    bilm: BiLM, softmax: Softmax, recipe: TrainingSettings, workers: WorkerGroup
) -> Stepper:
    tensors = {f"bilm.{n}": p.data for n, p in bilm.named_parameters()}
    tensors |= {f"softmax.{n}": p.data for n, p in softmax.named_parameters()}
    optimizer = Optimizer(recipe.optimizer, tensors, steps=10_000, word_matrix=WORD_MATRIX)
    return Stepper(bilm, softmax, optimizer, recipe, workers)


def _plain(body: nn.Module, softmax: Softmax, recipe: TrainingSettings) -> Step:
    """Autograd over everything, torch's own Adagrad over all of the word matrix, both in float32;
    products in bfloat16 are those that torch's autocast makes so."""
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bfloat16")
    parameters = [*body.parameters(), *softmax.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.2, initial_accumulator_value=1.0, eps=0.0)
    carry: Any = None

    def step(window: Window, number: int) -> None:
        nonlocal carry
        optimizer.zero_grad()
        with autocast:
            h_STBP, carry = body(window, carry)
            h_NP = nn.functional.dropout(h_STBP, 0.1).flatten(0, 2)
            loss = _sampled(h_NP, window, softmax, number)
        (loss * recipe.loss_scale).backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()

    return step


def _sampled(h_NP: Tensor, window: Window, softmax: Softmax, number: int) -> Tensor:
    draw = sample_candidates(SAMPLES, len(softmax.weight), np.random.default_rng(number))
    targets = window.targets_STB.reshape(-1)
    targets_N, words = torch.from_numpy(targets), torch.from_numpy(draw.words)
    true_N = (h_NP * softmax.weight[targets_N]).sum(1) + softmax.bias[targets_N]
    true_N = true_N - torch.from_numpy(draw.log_expected_counts(targets))
    logits_NM = h_NP @ softmax.weight[words].T + softmax.bias[words]
    logits_NM = logits_NM - torch.from_numpy(draw.log_expected_counts(draw.words))
    logits_NM = logits_NM.masked_fill(targets_N[:, None] == words, -torch.inf)
    logits_of_all = torch.cat([true_N[:, None], logits_NM], 1)
    return (logits_of_all.logsumexp(1) - true_N).sum() / len(targets_N)


class _Layers(nn.Module):
    """The same weights, layer 0 and the residuals; subclasses read a layer in one direction."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        self.bilm = bilm

    def forward(self, window: Window, carry: Any) -> tuple[Tensor, Any]:
        x_STBP = _encoded(self.bilm, window)
        states = []
        for layer in range(self.bilm.config.layers):
            x_STBP = nn.functional.dropout(x_STBP, 0.1)
            directions = []
            for way in (0, 1):
                state = None if carry is None else carry[2 * layer + way]
                y_TBP, state = self.read(x_STBP[way], layer, way, state)
                directions.append(y_TBP)
                states.append(tuple(part.detach() for part in state))
            x_STBP = torch.stack(directions) + (x_STBP if layer else 0)
        return x_STBP, states

    def read(self, x_TBP: Tensor, layer: int, way: int, state: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError


class _Plain(_Layers):
    """A loop over time, no gradient of our own."""

    def read(self, x_TBP: Tensor, layer: int, way: int, state: Any) -> tuple[Tensor, Any]:
        lstm = self.bilm.lstm
        weight, bias = lstm.weight[layer][way], lstm.bias[layer][way]
        project = lstm.project[layer][way]
        rows = x_TBP.shape[1]
        config = self.bilm.config
        h, c = state or (x_TBP.new_zeros(rows, config.projection), torch.zeros(rows, config.cells))
        outputs = []
        for x in x_TBP:
            i, j, f, o = (torch.cat([x, h.to(x.dtype)], 1) @ weight + bias).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
            c = c.clamp(-3, 3)
            h = ((torch.sigmoid(o) * torch.tanh(c)) @ project).clamp(-3, 3)
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class _Fused(_Layers):
    """torch.nn.LSTM with proj_size: a fused loop that can't clip."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__(bilm)
        self.layers = nn.ModuleList(
            nn.LSTM(SMALL.projection, SMALL.cells, proj_size=SMALL.projection)
            for _ in range(2 * SMALL.layers)
        )
        bilm.lstm.requires_grad_(False)

    def read(self, x_TBP: Tensor, layer: int, way: int, state: Any) -> tuple[Tensor, Any]:
        y_TBP, state = self.layers[2 * layer + way](x_TBP, state)
        return y_TBP, state


def _encoded(bilm: BiLM, window: Window) -> Tensor:
    """Layer 0 of a window, computed once for each distinct token."""
    is_half = torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", enabled=False):
        x_NP = bilm.encode(
            torch.from_numpy(window.characters_NK), precision=torch.bfloat16 if is_half else None
        )
    return token_vectors(torch.from_numpy(window.index_STB), x_NP)
