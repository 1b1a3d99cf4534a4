"""Differences between a CPU and a GPU: the cost of kernel launches, and copies to the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.errors import ElmoError

TIME_STEPS_APART = 8


def default_device() -> str:
    """Return `cuda` if a GPU is available, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str | torch.device) -> None:
    """Raise `ElmoError` if torch does not know a device."""
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise ElmoError(f"device must be cpu or cuda, found {device!r:.80}") from None


def wants_few_launches(device: torch.device) -> bool:
    """Tell whether few large operations are much faster than many small ones on a device, as on a
    GPU."""
    return device.type != "cpu"


@contextmanager
def float32_products(device: torch.device) -> Iterator[None]:
    """Disable TF32 on a GPU for the duration of the context, so that float32 products are exact.

    torch has two switches for it, and that of cuDNN (convolutions and recurrent layers) is on by
    default.
    """
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def repeated_time_steps(time_steps: int) -> int:
    """Round a number of time steps up to one of few values, so that shapes repeat for CUDA
    graphs."""
    return -(-time_steps // TIME_STEPS_APART) * TIME_STEPS_APART


def repeated_rows(rows: int) -> int:
    """Round a number of rows up to a power of two or a multiple of 256, so that shapes repeat."""
    return 1 << (rows - 1).bit_length() if rows <= 256 else -(-rows // 256) * 256


def host_tensor(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return an array as a CPU tensor, in pinned memory if it will be copied to a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def device_tensor(array: npt.NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """Return an array, or a tensor from `host_tensor`, as a tensor on a device; a GPU copies
    asynchronously."""
    tensor = array if isinstance(array, Tensor) else host_tensor(array, device)
    return tensor.to(device, non_blocking=device.type == "cuda")
