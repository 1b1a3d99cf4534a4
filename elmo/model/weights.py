"""Weights in safetensors files, checked when they are read.

safetensors' errors become `ElmoError` here, or `OSError` if the disk is full.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmo.errors import Damaged, ElmoError, first_line
from elmo.io.records import sha256


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to a new file with the usual permissions; return its SHA-256. Raises `OSError`
    if the disk is full."""
    path.touch(exist_ok=False)
    mode = path.stat().st_mode
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        if match := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(match[1]), os.strerror(int(match[1]))) from None
        raise
    path.chmod(mode)  # safetensors lets only the owner read it
    return sha256(path)


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all values of a tensor are finite, without allocating memory of its size."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file, reading only its header.

    Raises `ElmoError` for a tensor that is neither float32 nor float16.
    """
    shapes = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_slice(name)
                if (dtype := tensor.get_dtype()) not in ("F32", "F16"):
                    raise ElmoError(
                        f"{path}: {name} holds {dtype}, not float32 (F32) or float16 (F16)"
                    )
                shapes[name] = tuple(tensor.get_shape())
    except (SafetensorError, OSError) as error:
        raise _describe_error(path, error) from None
    return shapes


def load_weights(
    path: Path, names: Sequence[str] | None = None, *, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Read the tensors `names` (default: all) onto a device; float16 becomes float32.

    Raises `ElmoError` for a tensor with values that are not finite. Each tensor is a separate copy.
    """
    tensors = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys() if names is None else names:  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                if not is_finite(tensor):
                    raise Damaged(
                        f"{path}: {name} holds values that are not finite; "
                        "the training that made it has diverged, or the file was altered"
                    )
                dtype = torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
                tensors[name] = tensor.to(device, dtype, copy=True)
    except (SafetensorError, OSError) as error:
        raise _describe_error(path, error) from None
    return tensors


def strip_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with `prefix`, by their names without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _describe_error(path: Path, error: Exception) -> ElmoError:
    if isinstance(error, FileNotFoundError):
        return ElmoError(f"{path}: no such file; restore it")
    return ElmoError(f"{path}: not a safetensors file ({first_line(error)}); restore it")
