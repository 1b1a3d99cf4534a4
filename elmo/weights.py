"""Weights in safetensors files: what is written can be read by the group, what is read is checked.

The only file in which safetensors' own errors become `ElmoError` or `OSError`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmo.errors import ElmoError


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a new file, with the permissions that any new file gets.

    A full disk is an `OSError`, as it is for any other file.
    """
    path.touch()
    mode = path.stat().st_mode & 0o777
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(kept, path)
    except SafetensorError as error:
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise ElmoError(f"{path}: cannot be written ({_line(error)})") from None
    path.chmod(mode)


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a file, from its header alone; all must be float32."""
    shapes = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                tensor = file.get_slice(name)
                if tensor.get_dtype() != "F32":
                    raise ElmoError(f"{path}: {name} holds {tensor.get_dtype()}, not float32 (F32)")
                shapes[name] = tuple(tensor.get_shape())
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    return shapes


def load_weights(
    path: Path, names: Sequence[str] | None = None, *, device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Read tensors (by default all), each a copy of its own; `ElmoError` names one that is not
    finite."""
    tensors = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys() if names is None else names:  # noqa: SIM118 (no mapping)
                tensor = file.get_tensor(name)
                if tensor.numel() and not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
                    raise ElmoError(
                        f"{path}: {name} holds values that are not finite; "
                        "the training that made it has diverged, or the file was altered"
                    )
                tensors[name] = tensor.to(device, copy=True)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None
    return tensors


def _unreadable(path: Path, error: Exception) -> ElmoError:
    if isinstance(error, FileNotFoundError):
        return ElmoError(f"{path}: no such file")
    return ElmoError(f"{path}: not a safetensors file ({_line(error)})")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
