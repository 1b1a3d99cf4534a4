"""The precision a command computes in: `auto` becomes one of the two before work starts, and
bfloat16 where it is slow is named.

A slow precision is a warning and no refusal: a run begun on another machine can be finished here.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from elmo.settings import Precision, Requested
from elmo.train import machine_speed

if TYPE_CHECKING:
    from .params import Params

Say = Callable[[str], None]


def settled(requested: Requested, *, setting: str, device: str, say: Say) -> Precision:
    """The precision to compute in on a device; `setting` is the name of what asked for it.

    A GPU that this machine lacks is taken to be fast in bfloat16. On a Ray cluster, `auto` goes
    by the machine that this runs on.
    """
    if requested == "float32":
        return requested
    if device == "cuda" and not torch.cuda.is_available():
        return "bfloat16"
    measured = machine_speed.speeds(torch.device(device))
    if requested == "auto":
        chosen = machine_speed.fastest(measured)
        factor = measured.factor("bfloat16", "float32")
        say(
            f"{setting}: auto is {chosen} here, where matrix products are {_times(factor)} as fast "
            "in bfloat16 as in float32"
        )
        return chosen
    _warn(measured, f"set {setting} to float32 or auto", say)
    return requested


def warn_of_store(precision: str, *, device: str, say: Say) -> None:
    """The warning of `settled` where a store has settled the precision."""
    if precision == "bfloat16" and (device == "cpu" or torch.cuda.is_available()):
        measured = machine_speed.speeds(torch.device(device))
        _warn(measured, "the store is of bfloat16: append to it on a machine that has them", say)


def _warn(measured: machine_speed.Speeds, what_to_do: str, say: Say) -> None:
    factor = measured.factor("float32", "bfloat16")
    if factor >= machine_speed.WORTH and not os.environ.get("RAY_ADDRESS"):
        say(
            f"warning: matrix products here are {_times(factor)} as fast in float32 as in bfloat16:"
            " this machine has no instructions for bfloat16 (AVX-512 BF16 or AMX), or may not use "
            f"them; {what_to_do}"
        )


def settled_params(params: "Params", stage: str, *, gpu: bool, say: Say) -> "Params":
    """The params with the precision of one stage settled."""
    section: Any = getattr(params, stage)
    holder = getattr(section, "training", section)
    path = f"{stage}.training" if holder is not section else stage
    device = "cuda" if gpu else "cpu"
    chosen = settled(holder.precision, setting=f"{path}.precision", device=device, say=say)
    holder = replace(holder, precision=chosen)
    whole = replace(section, training=holder) if hasattr(section, "training") else holder
    changed: Params = replace(params, **{stage: whole})
    return changed


def _times(factor: float) -> str:
    return f"{factor:.0f} ×" if factor >= 10 else f"{factor:.2g} ×"
