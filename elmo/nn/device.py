"""The differences between CPU and GPU: the cost of kernel launches, exact products, and copies.

Shapes: N values that are added.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.errors import ElmoError

Item = TypeVar("Item")


def default_device() -> str:
    """Return `cuda` if a GPU is available, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str | torch.device) -> None:
    """Raise `ElmoError` unless a device is the CPU, or a GPU and this machine has one."""
    try:
        device_type = torch.device(device).type
    except (RuntimeError, TypeError):
        device_type = ""
    if device_type not in ("cpu", "cuda"):
        raise ElmoError(f"device must be cpu or cuda, found {device!r:.80}")
    if device_type == "cuda" and not torch.cuda.is_available():
        raise ElmoError(f"device {device}: this machine has no CUDA device; use cpu")


def prefers_large_operations(device: torch.device) -> bool:
    """Tell whether a device, such as a GPU, is much faster with few large operations than with many
    small ones, because each operation has a fixed cost."""
    return device.type != "cpu"


def round_up_time_steps(time_steps: int) -> int:
    """Round a number of time steps up to a multiple of 8: each shape needs a CUDA graph."""
    return -(-time_steps // 8) * 8


def round_up_rows(rows: int) -> int:
    """Round a number of rows up to a power of two or, above 256, to a multiple of 256: each shape
    needs a CUDA graph."""
    return 1 << (rows - 1).bit_length() if rows <= 256 else -(-rows // 256) * 256


_SWITCH_LOCK = threading.Lock()  # for the next two variables
_exact_contexts = 0  # open contexts of `exact_float32`
_tf32_switches = (False, True)  # torch's switches before the first context


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Compute float32 products on a GPU exactly within this context, by disabling TF32, which torch
    would use for some. On other devices, nothing changes.

    torch has two switches for TF32; the one for cuDNN (convolutions and recurrent layers) is on by
    default. Both apply to the process: if several threads are in this context, the last one
    restores them.
    """
    global _exact_contexts, _tf32_switches
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with _SWITCH_LOCK:
        if not _exact_contexts:
            _tf32_switches = matmul.allow_tf32, cudnn.allow_tf32
        _exact_contexts += 1
        matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        with _SWITCH_LOCK:
            _exact_contexts -= 1
            if not _exact_contexts:
                matmul.allow_tf32, cudnn.allow_tf32 = _tf32_switches


def host_tensor(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array as a CPU tensor, in pinned memory if it will be copied to a GPU `device`."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def device_tensor(array: npt.NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Return an array, or a tensor from `host_tensor`, as a tensor on a device; a GPU copies
    asynchronously."""
    tensor = array if isinstance(array, Tensor) else host_tensor(array, device)
    return tensor.to(device, non_blocking=device.type == "cuda")


def start_copy_to_host(tensor: Tensor) -> Callable[[], npt.NDArray[Any]]:
    """Start to copy a tensor to the host; return a function that returns it as an array.

    A GPU copies the tensor once it is computed. Only the function waits, for the copy but not for
    later work of the GPU.
    """
    wait_for_copies = HostCopies().start([tensor])
    return lambda: wait_for_copies()[0]


class HostCopies:
    """Copies tensors to the host. For a GPU, pinned memory is reused, because allocating it takes
    longer than the copy; an array is valid until the third copy after it starts."""

    def __init__(self) -> None:
        self._buffers = [torch.empty(0, dtype=torch.uint8)] * 3

    def start(self, tensors: Sequence[Tensor]) -> Callable[[], list[npt.NDArray[Any]]]:
        """Start to copy one or more tensors on a device; return a function that returns them as
        arrays, as in `start_copy_to_host`."""
        if tensors[0].device.type != "cuda":
            arrays = [tensor.cpu().numpy() for tensor in tensors]
            return lambda: arrays
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        buffer = self._buffers.pop(0)
        if len(buffer) < sum(sizes):
            buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        self._buffers.append(buffer)
        parts = torch.split(buffer[: sum(sizes)], sizes)
        host_arrays = [
            part.view(tensor.dtype).view(tensor.shape)
            for part, tensor in zip(parts, tensors, strict=True)
        ]
        for copy, tensor in zip(host_arrays, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        copy_event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copy_event.record(torch.cuda.current_stream(tensors[0].device))

        def wait_for_copies() -> list[npt.NDArray[Any]]:
            copy_event.synchronize()
            return [copy.numpy() for copy in host_arrays]

        return wait_for_copies


_spare_copies: list[HostCopies] = []  # not in use


@contextmanager
def host_copies() -> Iterator[HostCopies]:
    """Yield a `HostCopies` that only this context uses; its memory is reused in later contexts."""
    try:
        copies = _spare_copies.pop()
    except IndexError:
        copies = HostCopies()
    try:
        yield copies
    finally:
        _spare_copies.append(copies)


def add_rows_(sums: Tensor, rows_N: Tensor, values: Tensor) -> None:
    """Add `values[n]` to row `rows_N[n]` of `sums` in place, for all n, in a fixed order. On a GPU,
    `index_add_` would round differently in each run, and `index_put_` would be slow."""
    if sums.device.type == "cpu":
        sums.index_add_(0, rows_N, values)
        return
    embedding_backward = torch.ops.aten.embedding_dense_backward
    sums_by_row = embedding_backward(values.view(len(values), -1), rows_N, len(sums), -1, False)
    sums.add_(sums_by_row.view_as(sums))


def launch_ahead(launches: Iterator[Item], device: torch.device) -> Iterator[Item]:
    """Yield the items of `launches`. This iterator starts to compute an item on `device` when the
    item is requested.

    On a GPU, the next item is requested before an item is yielded, so that the GPU computes while
    the host uses the result.
    """
    queue: list[Item] = []
    for item in launches:
        queue.append(item)
        if device.type == "cpu" or len(queue) > 1:
            yield queue.pop(0)
    yield from queue
