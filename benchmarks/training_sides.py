"""The training steps that benchmarks.training compares: ours, plain autograd, torch.nn.LSTM.

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

from benchmarks.lm_text import prepare_shards
from elmo.data.characters import Characters
from elmo.data.stream import Window, WindowStream
from elmo.nn.bilm import BiLM, token_vectors
from elmo.nn.softmax import Softmax, new_softmax, sample_candidates
from elmo.settings import ModelShape, OptimizerSettings, TrainingSettings
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
ADAGRAD = OptimizerSettings(
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
    """Return the first windows of the text, and a function that runs a training step."""
    workers = WorkerGroup(rank, size)
    stream = open_stream(folder / "shards", folder / "text", workers, rows=rows, window=window)
    windows = [window for window, _ in islice(stream.windows(stream.first_position()), count)]
    vocabulary = stream.vocabulary
    recipe = recipe_2018(precision, rows=rows, window=window)
    config = NETWORKS[network]
    bilm = BiLM(config, character_count=Characters().size)
    bilm.reset_parameters(1)
    softmax = new_softmax(len(vocabulary), config.projection, seed=2)
    if side == "ours":
        return windows, _our_step(bilm, softmax, recipe, workers)
    bilm_layers = _FusedLayers(bilm) if side == "nn.LSTM" else _LoopLayers(bilm)
    return windows, _plain_step(bilm_layers, softmax, recipe)


def open_stream(
    shards: Path, text: Path, workers: WorkerGroup, *, rows: int, window: int
) -> WindowStream:
    """Return three epochs of the text as a stream of windows; write its shards if missing."""
    return WindowStream(
        *prepare_shards(shards, train=text, heldout=text),
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
    """Return the training settings of 2018, without evaluations."""
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
    """Return the FLOP of embedding one token; `types` is the share of distinct tokens."""
    convolutions = sum(
        count * width * shape.char_dim * (characters - width + 1) for width, count in shape.filters
    )
    width = sum(count for _, count in shape.filters)
    encoder_products = convolutions + shape.highways * 2 * width**2 + width * shape.projection
    cell_products = 4 * shape.cells * 2 * shape.projection + shape.cells * shape.projection
    return 2 * (2 * shape.layers * cell_products + types * encoder_products)


class _OperationCounter(TorchDispatchMode):
    """Counts the operations that return no view, and the bytes that they read and write."""

    operations = traffic = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, result))
            self.operations += 1
            self.traffic += sum(leaf.nbytes for leaf in leaves if torch.is_tensor(leaf))
        return result


def count_operations(step: Step, window: Window, number: int) -> tuple[int, int, int]:
    """Return the floating-point operations of the matrix products of one step (with its backward
    pass), the number of all operations, and the bytes that these read and write."""

    def baddbmm(_: Any, a: Any, b: Any, **__: Any) -> int:
        return 2 * a[0] * a[1] * a[2] * b[2]

    def linear(x: Any, weight: Any, *_: Any, **__: Any) -> int:
        return 2 * x[0] * x[1] * weight[0]

    formulas = {torch.ops.aten.baddbmm_: baddbmm, torch.ops.mkldnn._linear_pointwise: linear}
    flop_counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with flop_counter, _OperationCounter() as counter:
        step(window, number)
    return flop_counter.get_total_flops(), counter.operations, counter.traffic


def _our_step(bilm: BiLM, softmax: Softmax, recipe: TrainingSettings, workers: WorkerGroup) -> Step:
    stepper = _make_stepper(bilm, softmax, recipe, workers)
    state = bilm.lstm.zero_state(len(workers.own_rows(recipe.rows)))

    def step(window: Window, number: int) -> None:
        nonlocal state
        _, state = stepper.step(window, state, step=number)

    return step


def new_stepper(
    config: ModelShape, recipe: TrainingSettings, words: int, workers: WorkerGroup
) -> Stepper:
    """Return a stepper with new weights on the workers' device, compiled as in a long training."""
    bilm, softmax = (
        BiLM(config, character_count=Characters().size),
        Softmax(words, config.projection),
    )
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


def _plain_step(bilm_layers: nn.Module, softmax: Softmax, recipe: TrainingSettings) -> Step:
    """Return a step with autograd and torch's Adagrad over the whole word matrix, both in float32;
    in bfloat16, with autocast."""
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bfloat16")
    parameters = [*bilm_layers.parameters(), *softmax.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=0.2, initial_accumulator_value=1.0, eps=0.0)
    state: Any = None

    def step(window: Window, number: int) -> None:
        nonlocal state
        optimizer.zero_grad()
        with autocast:
            h_STBP, state = bilm_layers(window, state)
            h_NP = nn.functional.dropout(h_STBP, 0.1).flatten(0, 2)
            loss = _sampled_loss(h_NP, window, softmax, number)
        (loss * recipe.loss_scale).backward()
        nn.utils.clip_grad_norm_(parameters, 10.0)
        optimizer.step()

    return step


def _sampled_loss(h_NP: Tensor, window: Window, softmax: Softmax, number: int) -> Tensor:
    candidates = sample_candidates(SAMPLES, len(softmax.weight), np.random.default_rng(number))
    targets = window.targets_STB.reshape(-1)
    targets_N, candidate_ids = torch.from_numpy(targets), torch.from_numpy(candidates.words)
    target_logits_N = (h_NP * softmax.weight[targets_N]).sum(1) + softmax.bias[targets_N]
    target_logits_N = target_logits_N - torch.from_numpy(candidates.log_expected_counts(targets))
    logits_NM = h_NP @ softmax.weight[candidate_ids].T + softmax.bias[candidate_ids]
    logits_NM = logits_NM - torch.from_numpy(candidates.log_expected_counts(candidates.words))
    logits_NM = logits_NM.masked_fill(targets_N[:, None] == candidate_ids, -torch.inf)
    all_logits_NM = torch.cat([target_logits_N[:, None], logits_NM], 1)
    return (all_logits_NM.logsumexp(1) - target_logits_N).sum() / len(targets_N)


class _Layers(nn.Module):
    """The weights, layer 0 and residuals of our biLM; subclasses run a layer in one direction."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__()
        self.bilm = bilm

    def forward(self, window: Window, previous_states: Any) -> tuple[Tensor, Any]:
        x_STBP = _layer_0(self.bilm, window)
        states = []
        for layer in range(self.bilm.shape.layers):
            x_STBP = nn.functional.dropout(x_STBP, 0.1)
            outputs = []
            for direction in (0, 1):
                state = None if previous_states is None else previous_states[2 * layer + direction]
                y_TBP, state = self.scan(x_STBP[direction], layer, direction, state)
                outputs.append(y_TBP)
                states.append(tuple(part.detach() for part in state))
            x_STBP = torch.stack(outputs) + (x_STBP if layer else 0)
        return x_STBP, states

    def scan(self, x_TBP: Tensor, layer: int, direction: int, state: Any) -> tuple[Tensor, Any]:
        raise NotImplementedError


class _LoopLayers(_Layers):
    """LSTMs as a loop over time steps, with plain autograd."""

    def scan(self, x_TBP: Tensor, layer: int, direction: int, state: Any) -> tuple[Tensor, Any]:
        lstm = self.bilm.lstm
        weight, bias = lstm.weight[layer][direction], lstm.bias[layer][direction]
        project = lstm.project[layer][direction]
        rows = x_TBP.shape[1]
        config = self.bilm.shape
        h, c = state or (x_TBP.new_zeros(rows, config.projection), torch.zeros(rows, config.cells))
        outputs = []
        for x in x_TBP:
            i, j, f, o = (torch.cat([x, h.to(x.dtype)], 1) @ weight + bias).chunk(4, 1)
            c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
            c = c.clamp(-3, 3)
            h = ((torch.sigmoid(o) * torch.tanh(c)) @ project).clamp(-3, 3)
            outputs.append(h)
        return torch.stack(outputs), (h, c)


class _FusedLayers(_Layers):
    """torch.nn.LSTM with proj_size: a fused loop that cannot clip."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__(bilm)
        self.layers = nn.ModuleList(
            nn.LSTM(SMALL.projection, SMALL.cells, proj_size=SMALL.projection)
            for _ in range(2 * SMALL.layers)
        )
        bilm.lstm.requires_grad_(False)

    def scan(self, x_TBP: Tensor, layer: int, direction: int, state: Any) -> tuple[Tensor, Any]:
        y_TBP, state = self.layers[2 * layer + direction](x_TBP, state)
        return y_TBP, state


def _layer_0(bilm: BiLM, window: Window) -> Tensor:
    """Return layer 0 of a window, computed once for each distinct token."""
    precision = torch.bfloat16 if torch.is_autocast_enabled("cpu") else None
    with torch.autocast("cpu", enabled=False):
        x_NP = bilm.encode(torch.from_numpy(window.characters_NK), precision=precision)
    return token_vectors(torch.from_numpy(window.index_STB), x_NP)
