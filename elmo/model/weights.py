"""Weights in safetensors files, checked when they are read.

safetensors' own errors become `ElmoError` here and nowhere else. Its `save_file` is not used: it
replaces an existing file, makes it readable by its owner alone, reports a full disk as a
serialization error, and the file would have to be read again for its digest. Its `save` copies all
tensors twice.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from elmo.errors import Damaged, ElmoError, first_line

BLOCK_BYTES = 1 << 22  # bytes hashed and then written: they are in the cache in between
# Of what is written here, in the order in which safetensors writes them.
_DTYPE_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}


def save_weights(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to a new file with the usual permissions; return the file's SHA-256.

    The bytes equal those of safetensors' `save_file`. They are hashed while they are written,
    without a copy of tensors that are in CPU memory. A full disk raises `OSError`.
    """
    order = sorted(tensors, key=lambda name: (list(_DTYPE_NAMES).index(tensors[name].dtype), name))
    header, end = {}, 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    hasher = hashlib.sha256()
    with path.open("xb", buffering=0) as file:
        head = memoryview(len(text).to_bytes(8, "little") + text)
        for part in chain([head], (_view_bytes(tensors[name]) for name in order)):
            for start in range(0, len(part), BLOCK_BYTES):
                block = part[start : start + BLOCK_BYTES]
                hasher.update(block)
                while len(block):
                    block = block[file.write(block) :]
    return hasher.hexdigest()


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all values of a tensor are finite, without allocating memory of its size."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())


def _view_bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data


def weight_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file, reading only its header.

    `ElmoError` is raised for a tensor that is neither float32 nor float16.
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

    `ElmoError` names a tensor with values that are not finite. Each tensor is a separate copy.
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


def _describe_error(path: Path, error: Exception) -> ElmoError:
    if isinstance(error, FileNotFoundError):
        return ElmoError(f"{path}: no such file; restore it")
    return ElmoError(f"{path}: not a safetensors file ({first_line(error)}); restore it")
