"""Loops of many small GPU operations, captured once for each shape and replayed as one launch.

A recurrent loop launches several kernels per time step; on a GPU the launches then take longer than
the work. A CUDA graph launches them all at once. On a CPU nothing changes.
"""

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Tensors = Sequence[Tensor | None]
Function = Callable[..., tuple[Tensor | None, ...]]
WARM_UP_CALLS = 2  # plain calls before a shape is captured: one that comes once is not worth it
MAX_GRAPHS = 16  # graphs kept: each holds the memory of its inputs and outputs

_calls: dict[Any, int] = {}
_captured: dict[Any, "_Captured"] = {}


def replay(function: Function, tensors: Tensors, constants: tuple[Any, ...]) -> Any:
    """`function(*tensors, *constants)`, which must depend on nothing else and return new tensors.

    `ELMO_CUDA_GRAPHS=0` in the environment runs it as it is.
    """
    if not _wanted(tensors):
        return function(*tensors, *constants)
    shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
    key = (function, shapes, constants)
    graph = _captured.get(key)
    if graph is None:
        _calls[key] = _calls.get(key, 0) + 1
        if _calls[key] <= WARM_UP_CALLS or len(_captured) == MAX_GRAPHS:
            return function(*tensors, *constants)
        graph = _captured[key] = _Captured(function, tensors, constants)
        log.info("CUDA graph of %s: %d captured", function.__name__, len(_captured))
    return graph(tensors)


def _wanted(tensors: Tensors) -> bool:
    first = tensors[0]
    if first is None or not first.is_cuda or torch.compiler.is_compiling():
        return False
    return os.environ.get("ELMO_CUDA_GRAPHS", "1") != "0"


class _Captured:
    """A graph with the tensors it reads from and writes to."""

    def __init__(self, function: Function, tensors: Tensors, constants: tuple[Any, ...]) -> None:
        self.inputs = [None if tensor is None else tensor.clone() for tensor in tensors]
        self.graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            function(*self.inputs, *constants)
        current.wait_stream(aside)
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.outputs = function(*self.inputs, *constants)

    def __call__(self, tensors: Tensors) -> tuple[Tensor | None, ...]:
        for kept, given in zip(self.inputs, tensors, strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        self.graph.replay()
        return tuple(None if tensor is None else tensor.clone() for tensor in self.outputs)
