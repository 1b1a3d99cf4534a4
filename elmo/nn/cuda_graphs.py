"""Capture loops of many small GPU operations once per shape, and replay them as one launch.

A recurrent loop launches several kernels per time step, and on a GPU the launches take longer than
the work. A CUDA graph launches all of them at once. On a CPU, nothing changes.

A graph has its own input and output tensors, so it serves one call at a time: calls on a device
take turns, and each stream has its own graphs. Large outputs that another graph reads next, such as
the values saved for a backward pass, may stay in the graph's memory (`call_lending_outputs`).
"""

import logging
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)

Tensors = Sequence[Tensor | None]
GraphFunction = Callable[..., tuple[Tensor | None, ...]]
WARM_UP_CALLS = 2  # plain calls before a shape is captured, since rare shapes are not worth it
MAX_GRAPHS = 64  # graphs to keep; each holds the memory of its inputs and outputs
MAX_GRAPH_BYTES = 2 << 30  # of the inputs and outputs of a device's graphs, or
MAX_MEMORY_SHARE = 1 / 8  # this share of a GPU's memory, if that is more and free
MAX_COUNTED_SHAPES = 1024  # shapes whose calls are counted


class _DeviceGraphs:
    """The graphs of one device, and the lock for using them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.call_counts: OrderedDict[Any, int] = OrderedDict()
        self.graph_by_key: OrderedDict[Any, _Graph] = OrderedDict()
        self.evicted: OrderedDict[Any, int] = OrderedDict()  # the bytes of deleted graphs
        self.pools: dict[int, Any] = {}  # by stream, since streams run at the same time


_graphs: dict[torch.device, _DeviceGraphs] = {}
_graphs_lock = threading.Lock()  # guards `_graphs`


class Lease:
    """The right to read outputs of a graph in place: while it exists, the graph is not replayed."""


def call_with_cuda_graph(
    function: GraphFunction, tensors: Tensors, constants: tuple[Any, ...], *, params: Tensors = ()
) -> Any:
    """Return `function(*tensors, *params, *constants)`. On a GPU, calls with a frequent shape are
    captured as a CUDA graph and replayed, which saves the launches of many small kernels.

    The function must depend only on its arguments and return new tensors. `tensors` are copied into
    the graph at each call. `params`, such as weights, are read in place, so a graph is valid only
    for their addresses, and for equal `constants`. `ELMO_CUDA_GRAPHS=0` in the environment disables
    graphs.
    """
    return call_lending_outputs(function, tensors, constants, params=params, lent_count=0)[0]


def call_lending_outputs(
    function: GraphFunction,
    tensors: Tensors,
    constants: tuple[Any, ...],
    *,
    params: Tensors = (),
    lent_count: int,
) -> tuple[Any, Lease | None]:
    """Call a function as `call_with_cuda_graph` does, but leave its last `lent_count` outputs in
    the graph's own memory instead of copying them; return the outputs and a lease.

    Keep the lease as long as you read those outputs. Meanwhile, other calls are computed without
    the graph; they have their own outputs and no lease (None).
    """
    if not _uses_graphs(tensors):
        return function(*tensors, *params, *constants), None
    device = next(t.device for t in tensors if t is not None)
    with _graphs_lock:
        graphs = _graphs.setdefault(device, _DeviceGraphs())
    stream = _stream_handle(device)
    shapes = tuple(None if t is None else (t.shape, t.dtype, t.device) for t in tensors)
    key = (function, stream, shapes, tuple(_storage_key(t) for t in params), constants)
    with graphs.lock:
        graph = graphs.graph_by_key.get(key)
        if graph is None and _is_worth_capturing(graphs, key, tensors):
            # Lent outputs must survive replays of earlier graphs, which may reuse the memory of a
            # shared pool.
            pool = _pool(device) if lent_count else graphs.pools.setdefault(stream, _pool(device))
            graph = graphs.graph_by_key[key] = _Graph(function, tensors, params, constants, pool)
            log.info("CUDA graph of %s: %d captured", function.__name__, len(graphs.graph_by_key))
            _evict_graphs(graphs, _max_bytes(device, _total_bytes(graphs)))
        if graph is not None and not graph.is_lent:
            if key in graphs.graph_by_key:
                graphs.graph_by_key.move_to_end(key)
            return graph(tensors, lent_count)
    return function(*tensors, *params, *constants), None


def _is_worth_capturing(graphs: _DeviceGraphs, key: Any, tensors: Tensors) -> bool:
    """Count the call; return whether its shape is frequent enough for a graph, and the graph fits.

    A graph that was deleted to make room is captured again only if it fits beside the others;
    otherwise alternating shapes would replace each other's graphs forever.
    """
    graphs.call_counts[key] = graphs.call_counts.pop(key, 0) + 1
    if len(graphs.call_counts) > MAX_COUNTED_SHAPES:
        graphs.call_counts.popitem(last=False)
    max_bytes = _max_bytes(next(t.device for t in tensors if t is not None), _total_bytes(graphs))
    if graphs.call_counts[key] <= WARM_UP_CALLS or _count_bytes(tensors) > max_bytes:
        return False
    return key not in graphs.evicted or _total_bytes(graphs) + graphs.evicted[key] <= max_bytes


def _evict_graphs(graphs: _DeviceGraphs, max_bytes: int) -> None:
    """Delete graphs until their number and size (at most `max_bytes`) are within the limits.

    The newest graph is deleted first if it alone is too large, otherwise the least recently used.
    """
    is_too_large = next(reversed(graphs.graph_by_key.values())).bytes > max_bytes
    while _total_bytes(graphs) > max_bytes:
        key, graph = graphs.graph_by_key.popitem(last=is_too_large)
        graphs.evicted[key], is_too_large = graph.bytes, False
    while len(graphs.graph_by_key) > MAX_GRAPHS:
        graphs.graph_by_key.popitem(last=False)
    while len(graphs.evicted) > MAX_COUNTED_SHAPES:
        graphs.evicted.popitem(last=False)


def _max_bytes(device: torch.device, bytes_in_use: int) -> int:
    """Return the most bytes that the graphs of a device may use; they use `bytes_in_use` now."""
    if device.type != "cuda":
        return MAX_GRAPH_BYTES
    free_bytes, memory = torch.cuda.mem_get_info(device)
    return max(MAX_GRAPH_BYTES, min(int(memory * MAX_MEMORY_SHARE), bytes_in_use + free_bytes // 2))


def _total_bytes(graphs: _DeviceGraphs) -> int:
    return sum(graph.bytes for graph in graphs.graph_by_key.values())


def _count_bytes(tensors: Tensors) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def _stream_handle(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _pool(device: torch.device) -> Any:
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def _uses_graphs(tensors: Tensors) -> bool:
    first_tensor = tensors[0]
    if first_tensor is None or not first_tensor.is_cuda or torch.compiler.is_compiling():
        return False
    return os.environ.get("ELMO_CUDA_GRAPHS", "1") != "0"


def _storage_key(tensor: Tensor | None) -> Any:
    """Return a key for a tensor that a graph reads in place: its address and layout.

    A later tensor with the same key is read just as correctly.
    """
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class _Graph:
    """A captured graph, with its input and output tensors."""

    def __init__(
        self,
        function: GraphFunction,
        tensors: Tensors,
        params: Tensors,
        constants: tuple[Any, ...],
        pool: Any = None,
    ) -> None:
        self.pool = pool
        # Not in inference mode, because later calls could not write to the inputs. This turns
        # gradients on, so detach the inputs, or they would keep everything that their backward pass
        # needs.
        with torch.inference_mode(False):
            self.inputs = [None if t is None else t.detach().clone() for t in tensors]
        self.outputs = self._capture(lambda: function(*self.inputs, *params, *constants))
        self.bytes = _count_bytes(self.inputs) + _count_bytes(self.outputs)
        self._lease: weakref.ref[Lease] | None = None

    @property
    def is_lent(self) -> bool:
        """Tell whether a caller still reads the outputs of the last call in place."""
        return self._lease is not None and self._lease() is not None

    def _capture(self, call: Callable[[], Any]) -> Any:
        """Capture the call. Graphs of a stream share intermediate memory, because they run in
        turn."""
        device = next(tensor.device for tensor in self.inputs if tensor is not None)
        with torch.cuda.device(device):
            current_stream = torch.cuda.current_stream(device)
            side_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            side_stream.wait_stream(current_stream)
            with torch.cuda.stream(side_stream):
                call()
            current_stream.wait_stream(side_stream)
            self.graph = torch.cuda.CUDAGraph()
            mode = "thread_local"
            with torch.cuda.graph(
                self.graph, pool=self.pool, stream=side_stream, capture_error_mode=mode
            ):
                return call()

    def __call__(self, tensors: Tensors, lent_count: int) -> tuple[tuple[Tensor | None, ...], Any]:
        for static_input, tensor in zip(self.inputs, tensors, strict=True):
            if static_input is not None and tensor is not None:
                static_input.copy_(tensor)
        self._replay()
        count = len(self.outputs) - lent_count
        clones = (None if tensor is None else tensor.clone() for tensor in self.outputs[:count])
        lease = Lease() if lent_count else None
        self._lease = None if lease is None else weakref.ref(lease)
        return (*clones, *self.outputs[count:]), lease

    def _replay(self) -> None:
        self.graph.replay()
