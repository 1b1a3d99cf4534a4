"""Loops of many small GPU operations, captured once per shape and replayed as one launch.

A recurrent loop launches several kernels per time step, and on a GPU the launches take longer than
the work. A CUDA graph launches all of them at once. On a CPU nothing changes.

A graph has input and output tensors of its own, so it serves one call at a time: calls on a device
take turns, and each stream has its own graphs.
"""

import logging
import os
import threading
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
MAX_BYTES = 2 << 30  # of the inputs and outputs of a device's graphs
MAX_COUNTED = 1024  # shapes whose calls are counted


class _Graphs:
    """The graphs of one device, and the lock for using them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calls: OrderedDict[Any, int] = OrderedDict()
        self.captured: OrderedDict[Any, _Captured] = OrderedDict()
        self.let_go: OrderedDict[Any, int] = OrderedDict()  # bytes of those that made room
        self.pools: dict[int, Any] = {}  # of a stream: what runs on two at once shares no memory


_devices: dict[torch.device, _Graphs] = {}
_lock = threading.Lock()  # of `_devices`


def call_with_cuda_graph(
    function: Function, tensors: Tensors, constants: tuple[Any, ...], *, fixed: Tensors = ()
) -> Any:
    """Return `function(*tensors, *fixed, *constants)`; on a GPU, once its shapes have come several
    times, capture the call as a CUDA graph and replay that, which saves the launches of many small
    kernels.

    The function must depend on its arguments alone and return new tensors. `tensors` are copied
    into the graph at each call; `fixed` tensors, such as weights, are read in place, so a graph is
    valid for their addresses only. `ELMO_CUDA_GRAPHS=0` in the environment disables graphs.
    """
    if not _wanted(tensors):
        return function(*tensors, *fixed, *constants)
    device = next(t.device for t in tensors if t is not None)
    with _lock:
        graphs = _devices.setdefault(device, _Graphs())
    stream = _stream(device)
    shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
    key = (function, stream, shapes, tuple(_place(t) for t in fixed), constants)
    with graphs.lock:
        graph = graphs.captured.get(key)
        if graph is None and _is_worth_one(graphs, key, tensors):
            pool = graphs.pools.setdefault(stream, _new_pool(device))
            graph = graphs.captured[key] = _Captured(function, tensors, fixed, constants, pool)
            log.info("CUDA graph of %s: %d captured", function.__name__, len(graphs.captured))
            _make_room(graphs)
        if graph is not None:
            if key in graphs.captured:
                graphs.captured.move_to_end(key)
            return graph(tensors)
    return function(*tensors, *fixed, *constants)


def _is_worth_one(graphs: _Graphs, key: Any, tensors: Tensors) -> bool:
    """Count the call; return whether its shape is frequent enough for a graph, and the graph would
    fit.

    A graph that was deleted to make room is captured again only if it fits beside the others;
    otherwise alternating shapes would replace each other's graphs forever.
    """
    graphs.calls[key] = graphs.calls.pop(key, 0) + 1
    if len(graphs.calls) > MAX_COUNTED:
        graphs.calls.popitem(last=False)
    if graphs.calls[key] <= WARM_UP_CALLS or _bytes(tensors) > MAX_BYTES:
        return False
    return key not in graphs.let_go or _held(graphs) + graphs.let_go[key] <= MAX_BYTES


def _make_room(graphs: _Graphs) -> None:
    """Delete graphs until their number and size are within the limits.

    The newest is deleted if it alone is too large, otherwise the least recently used.
    """
    alone = next(reversed(graphs.captured.values())).bytes > MAX_BYTES
    while _held(graphs) > MAX_BYTES:
        key, graph = graphs.captured.popitem(last=alone)
        graphs.let_go[key], alone = graph.bytes, False
    while len(graphs.captured) > MAX_GRAPHS:
        graphs.captured.popitem(last=False)
    while len(graphs.let_go) > MAX_COUNTED:
        graphs.let_go.popitem(last=False)


def _held(graphs: _Graphs) -> int:
    return sum(graph.bytes for graph in graphs.captured.values())


def _bytes(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _new_pool(device: torch.device) -> Any:
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def _wanted(tensors: Tensors) -> bool:
    first = tensors[0]
    if first is None or not first.is_cuda or torch.compiler.is_compiling():
        return False
    return os.environ.get("ELMO_CUDA_GRAPHS", "1") != "0"


def _place(tensor: Tensor | None) -> Any:
    """Return what identifies a tensor that a graph reads in place.

    Another tensor later stored at the same place, with the same shape, is read just as correctly.
    """
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class _Captured:
    """A captured graph, with its input and output tensors."""

    def __init__(
        self,
        function: Function,
        tensors: Tensors,
        fixed: Tensors,
        constants: tuple[Any, ...],
        pool: Any = None,
    ) -> None:
        self.pool = pool
        with torch.inference_mode(False):  # or no later call outside that mode could write to them
            self.inputs = [None if tensor is None else tensor.clone() for tensor in tensors]
        self.outputs = self._capture(lambda: function(*self.inputs, *fixed, *constants))
        self.bytes = _bytes(self.inputs) + _bytes(self.outputs)

    def _capture(self, call: Callable[[], Any]) -> Any:
        """Capture the call. The graphs of a stream share intermediate memory, since they run in
        turn."""
        device = next(tensor.device for tensor in self.inputs if tensor is not None)
        with torch.cuda.device(device):
            current = torch.cuda.current_stream(device)
            aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                call()
            current.wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            mode = "thread_local"
            with torch.cuda.graph(
                self.graph, pool=self.pool, stream=aside, capture_error_mode=mode
            ):
                return call()

    def __call__(self, tensors: Tensors) -> tuple[Tensor | None, ...]:
        for kept, given in zip(self.inputs, tensors, strict=True):
            if kept is not None and given is not None:
                kept.copy_(given)
        self._replay()
        return tuple(None if tensor is None else tensor.clone() for tensor in self.outputs)

    def _replay(self) -> None:
        self.graph.replay()
