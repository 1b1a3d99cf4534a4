"""Differences of a CPU and a GPU: the cost of launches, and copies to the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmo.errors import ElmoError

TIME_STEPS_APART = 8


def default_device() -> str:
    """The GPU where there is one, else the processor."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str | torch.device) -> None:
    """Refuse a device that torch does not know."""
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise ElmoError(f"device must be cpu or cuda, found {device!r:.80}") from None


def wants_few_launches(device: torch.device) -> bool:
    """Tell whether one large operation is far cheaper on it than many small ones: true of a GPU."""
    return device.type != "cpu"


@contextmanager
def float32_products(device: torch.device) -> Iterator[None]:
    """While this lasts, a GPU computes in float32 what is to be float32, in the network and in
    tasks alike: no setting names TF32, so nothing may be rounded to it.

    torch has two switches, of which that of cuDNN, for convolutions and recurrent layers, is on.
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
    """A number of time steps, rounded up to one of few where launches count: shapes then repeat,
    and a loop is captured once."""
    return -(-time_steps // TIME_STEPS_APART) * TIME_STEPS_APART


def repeated_rows(rows: int) -> int:
    """Round a number of rows up: to a power of two, or a multiple of 256."""
    return 1 << (rows - 1).bit_length() if rows <= 256 else -(-rows // 256) * 256


def held(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """An array as a tensor on the host, from where a device copies it without the host's help."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def sent(array: npt.NDArray[np.generic] | Tensor, device: torch.device) -> Tensor:
    """An array, or a tensor that is `held`, on a device; a GPU copies it while the host
    continues."""
    tensor = array if isinstance(array, Tensor) else held(array, device)
    return tensor.to(device, non_blocking=device.type == "cuda")
