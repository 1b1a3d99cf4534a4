"""Loops of many small GPU operations, captured once for each shape and replayed as one launch.

A recurrent loop launches several kernels per time step; on a GPU the launches then take longer than
the work. A CUDA graph launches them all at once. On a CPU nothing changes.
"""

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Tensors = Sequence[Tensor | None]
Function = Callable[..., tuple[Tensor | None, ...]]
WARM_UP_CALLS = 2  # plain calls before a shape is captured: one that comes once is not worth it
MAX_GRAPHS = 64  # graphs kept, the ones used last: each holds the memory of its inputs and outputs
MAX_COUNTED = 1024  # shapes whose calls are counted

_calls: OrderedDict[Any, int] = OrderedDict()
_captured: OrderedDict[Any, "_Captured"] = OrderedDict()
_pools: dict[torch.device, Any] = {}


def replay(
    function: Function, tensors: Tensors, constants: tuple[Any, ...], *, fixed: Tensors = ()
) -> Any:
    """`function(*tensors, *fixed, *constants)`, which must depend on nothing else and return new
    tensors.

    `tensors` are copied into a graph's own in each replay. `fixed` (weights) are not: a graph reads
    them where they lie, and belongs to that address. `ELMO_CUDA_GRAPHS=0` in the environment runs
    the function as it is.
    """
    if not _wanted(tensors):
        return function(*tensors, *fixed, *constants)
    shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
    key = (function, shapes, tuple(_place(t) for t in fixed), constants)
    graph = _captured.get(key)
    if graph is None:
        _calls[key] = _calls.pop(key, 0) + 1
        if len(_calls) > MAX_COUNTED:
            _calls.popitem(last=False)
        if _calls[key] <= WARM_UP_CALLS:
            return function(*tensors, *fixed, *constants)
        if len(_captured) == MAX_GRAPHS:
            _captured.popitem(last=False)
        graph = _captured[key] = _Captured(function, tensors, fixed, constants)
        log.info("CUDA graph of %s: %d captured", function.__name__, len(_captured))
    _captured.move_to_end(key)
    return graph(tensors)


def _wanted(tensors: Tensors) -> bool:
    first = tensors[0]
    if first is None or not first.is_cuda or torch.compiler.is_compiling():
        return False
    return os.environ.get("ELMO_CUDA_GRAPHS", "1") != "0"


def _place(tensor: Tensor | None) -> Any:
    """All that a graph remembers of a tensor it does not copy. Another tensor that comes to lie
    there later is read as rightly as the first."""
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class _Captured:
    """A graph with the tensors it reads from and writes to."""

    def __init__(
        self, function: Function, tensors: Tensors, fixed: Tensors, constants: tuple[Any, ...]
    ) -> None:
        with torch.inference_mode(False):  # or no later call outside that mode could write to them
            self.inputs = [None if tensor is None else tensor.clone() for tensor in tensors]
        self.outputs = self._capture(lambda: function(*self.inputs, *fixed, *constants))

    def _capture(self, call: Callable[[], Any]) -> Any:
        """Record the call on the device of its tensors. All graphs of a device share the memory of
        what they compute on the way: they run one after another."""
        device = next(tensor.device for tensor in self.inputs if tensor is not None)
        with torch.cuda.device(device):
            pool = _pools.setdefault(device, torch.cuda.graph_pool_handle())
            current = torch.cuda.current_stream(device)
            aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                call()
            current.wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            mode = "thread_local"
            with torch.cuda.graph(self.graph, pool=pool, stream=aside, capture_error_mode=mode):
                return call()

    def __call__(self, tensors: Tensors) -> tuple[Tensor | None, ...]:
        for kept, given in zip(self.inputs, tensors, strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        self._replay()
        return tuple(None if tensor is None else tensor.clone() for tensor in self.outputs)

    def _replay(self) -> None:
        self.graph.replay()
