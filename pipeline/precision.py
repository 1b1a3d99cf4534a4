"""The precision a command computes in: `auto` becomes one of the two before work starts, and
bfloat16 where it is slow is refused.

With `ELMO_FORCE_BFLOAT16=1` that is a warning: a run begun on another machine can be finished here.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from elmo.embedder import check_precision
from elmo.errors import ElmoError
from elmo.settings import EmbeddingPrecision, RequestedOfEmbedding
from elmo.train import machine_speed

if TYPE_CHECKING:
    from .params import Params

Say = Callable[[str], None]
FORCE = "ELMO_FORCE_BFLOAT16"


def settled(
    requested: RequestedOfEmbedding, *, setting: str, device: str, say: Say
) -> EmbeddingPrecision:
    """The precision to compute in on a device; `setting` is the name of what asked for it.

    A GPU that this machine lacks is taken to be fast in bfloat16. On a Ray cluster, `auto` goes
    by the machine that this runs on. `ElmoError` refuses bfloat16 where it is the slower one,
    unless it is forced, and int8 where it is not possible.
    """
    if requested == "int8" and not os.environ.get("RAY_ADDRESS"):
        check_precision(requested, torch.device(device))
    if requested in ("float32", "int8"):
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
    if slow := _slow(measured):
        if not os.environ.get(FORCE):
            raise ElmoError(
                f"{setting}: {slow}; set it to float32 or auto, or {FORCE}=1 to go on in bfloat16"
            )
        say(f"warning: {setting}: {slow}")
    return requested


def warn_of_store(precision: str, *, device: str, say: Say) -> None:
    """A warning where a store has settled the precision."""
    if precision == "bfloat16" and (device == "cpu" or torch.cuda.is_available()):
        slow = _slow(machine_speed.speeds(torch.device(device)))
        if slow:
            say(
                f"warning: {slow}; the store is of bfloat16: append to it on a machine that has "
                "them"
            )


def _slow(measured: machine_speed.Speeds) -> str:
    """Why bfloat16 is the wrong precision here; empty where it is not, or on a cluster."""
    factor = measured.factor("float32", "bfloat16")
    if factor < machine_speed.WORTH or os.environ.get("RAY_ADDRESS"):
        return ""
    return (
        f"matrix products here are {_times(factor)} as fast in float32 as in bfloat16: this "
        "machine has no instructions for bfloat16 (AVX-512 BF16 or AMX), or may not use them"
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
