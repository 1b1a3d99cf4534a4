"""The elementwise part of an LSTM cell, fused by torch.compile if a compiler is available.

Shapes: S directions, B rows, C cells, G = 4C gates in the order i, j (new), f, o.
"""

import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Tokens × cells of a layer from which compiling saves more time than it takes: 4 s, or 20 s without
# a warm cache.
MIN_COMPILE_WORK = 1 << 28


def is_worth_compiling(tokens: int, cells: int) -> bool:
    """Tell whether compiling saves more time than it takes, for a layer of `cells` cells that reads
    `tokens` tokens."""
    return tokens * cells >= MIN_COMPILE_WORK


class CellFunctions(NamedTuple):
    """The elementwise functions of an LSTM cell, eager or compiled (`kind`).

    `forward` computes the state and the output from the gates. For training, `forward_into` stores
    both for `backward`.
    """

    forward: Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor]]
    forward_into: Callable[..., None]
    backward: Callable[..., Tensor]
    kind: str


@cache
def choose_cell_functions(device: torch.device, cells: int) -> CellFunctions:
    """Return the cell functions for a device and a layer's width: compiled by torch.compile if it
    works here, else plain torch. The choice is logged; `ELMO_COMPILE=0` in the environment selects
    plain torch."""
    if obstacle := _obstacle_to_compiling(device):
        return _log_choice(EAGER_CELL, obstacle)
    if not torch.cuda.is_available():  # the compiler would warn about it
        logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    functions = [torch.compile(_copy_function(function, cells)) for function in EAGER_CELL[:-1]]
    return _log_choice(CellFunctions._make([*functions, "compiled"]), "fused by torch.compile")


def _copy_function(function: Any, cells: int) -> Callable[..., Any]:
    """Return a copy of a function with its own code object.

    torch compiles a code object only for a few shapes, so each width needs its own.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{cells}")
    return FunctionType(code, function.__globals__)


def fuse_on_gpu(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return the function, fused by torch.compile if `device` is a GPU and this works here. It is
    compiled for any shape: for a fixed shape, torch 2.11 would make constants from dropout that do
    not fit int32."""
    if device.type != "cuda" or _obstacle_to_compiling(device):
        return function
    return _compile_for_any_shape(function)


@cache
def _compile_for_any_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)


def _obstacle_to_compiling(device: torch.device) -> str:
    """Return the reason why torch.compile does not work here, such as a missing compiler, or ""."""
    if os.environ.get("ELMO_COMPILE", "1") == "0":
        return "ELMO_COMPILE=0"
    if device.type == "cpu":
        has_compiler = shutil.which("g++") or shutil.which("clang++")
        return "" if has_compiler else "no C++ compiler was found"
    if find_spec("triton") is None:
        return "no Triton was found"
    # Triton needs one to build the launchers of its kernels.
    if os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang", "cc"))):
        return ""
    return "no C compiler was found"


def _log_choice(cell: CellFunctions, reason: str) -> CellFunctions:
    log.info("LSTM cell: %s (%s)", cell.kind, reason)
    return cell


def _tanh(x: Tensor) -> Tensor:
    # Several times faster than torch.tanh on a CPU and within 1.2e-7 of it.
    return torch.sigmoid(x * 2) * 2 - 1


def _forward(gates_SBG: Tensor, c_SBC: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Return the new cell state and hidden state (S, B, C) from gates before their activation."""
    i, j, f, o = gates_SBG.float().chunk(4, -1)
    c_SBC = torch.sigmoid(f) * c_SBC + torch.sigmoid(i) * _tanh(j)
    if clip is not None:
        c_SBC = c_SBC.clamp(-clip, clip)
    return c_SBC, (torch.sigmoid(o) * _tanh(c_SBC)).to(gates_SBG.dtype)


def _forward_into(
    gates_SBG: Tensor,
    c_SBC: Tensor,
    keep_SB1: Tensor | None,
    clip: float | None,
    new_c_SBC: Tensor,
    hidden_SBC: Tensor,
) -> None:
    """Compute `_forward`, and write the new state and hidden state to `new_c_SBC` and `hidden_SBC`.

    The old state counts as 0 where `keep_SB1` is 0.
    """
    if keep_SB1 is not None:
        c_SBC = c_SBC * keep_SB1
    c_SBC, hidden = _forward(gates_SBG, c_SBC, clip)
    new_c_SBC.copy_(c_SBC)
    hidden_SBC.copy_(hidden)


def _backward(
    dhidden_SBC: Tensor,
    dc_SBC: Tensor,
    gates_SBG: Tensor,
    c_SBC: Tensor,
    previous_c_SBC: Tensor,
    keep_SB1: Tensor | None,
    clip: float | None,
    dgates_SBG: Tensor,
) -> Tensor:
    """Write the gradient of the gates, before their activation, to `dgates_SBG`. Return the
    gradient of the old cell state `previous_c_SBC`; this state counts as 0 where `keep_SB1` is 0.

    The activations are recomputed, which is cheaper than keeping them. As in TensorFlow, no
    gradient passes through a clipped state.
    """
    i, j, f, o = gates_SBG.float().chunk(4, -1)
    i, j, f, o = torch.sigmoid(i), _tanh(j), torch.sigmoid(f), torch.sigmoid(o)
    tanh_c = _tanh(c_SBC)
    dhidden_SBC = dhidden_SBC.float()
    if keep_SB1 is not None:
        previous_c_SBC = previous_c_SBC * keep_SB1
    do = dhidden_SBC * tanh_c * o * (1 - o)
    dc = dc_SBC + dhidden_SBC * o * (1 - tanh_c * tanh_c)
    if clip is not None:
        dc = torch.where(c_SBC.abs() < clip, dc, 0)
    di, dj, df = dc * j * i * (1 - i), dc * i * (1 - j * j), dc * previous_c_SBC * f * (1 - f)
    dgates_SBG.copy_(torch.cat([di, dj, df, do], -1))
    return dc * f if keep_SB1 is None else dc * f * keep_SB1


EAGER_CELL = CellFunctions(_forward, _forward_into, _backward, kind="eager")
