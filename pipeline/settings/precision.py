"""Choose the numeric precision before work starts: `auto` becomes float32 or bfloat16."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from elmo.io.location import Location
from elmo.settings import Precision, PrecisionChoice
from elmo.train import machine_speed

if TYPE_CHECKING:
    from .cluster import Cluster
    from .params import Params

Say = Callable[[str], None]
_RECORD_FILE = "precision-{}.json"  # {} is the stage; in the work folder


class AutoPrecision(msgspec.Struct, forbid_unknown_fields=True):
    """The record of the choice for `auto` when a stage's work in progress began, and the device."""

    precision: Precision
    device: str


def choose_precision(choice: PrecisionChoice, *, setting: str, device: str, say: Say) -> Precision:
    """Return the precision to compute in on `device`: `choice`, or for `auto` the faster one.

    `setting` names the setting, for messages; `say` gets a line about the choice. A GPU on another
    machine is assumed to be fast in bfloat16.
    """
    if choice != "auto":
        return choice
    if device == "cuda" and not torch.cuda.is_available():
        return "bfloat16"
    speeds = machine_speed.measure_matrix_speeds(torch.device(device))
    precision = machine_speed.choose_faster_precision(speeds)
    factor = speeds.speedup("bfloat16", "float32")
    speedup_text = f"{factor:.0f}" if factor >= 10 else f"{factor:.2g}"
    say(
        f"{setting}: auto chose {precision}: on this machine, matrix products are {speedup_text}× "
        "as fast in bfloat16 as in float32"
    )
    return precision


def with_chosen_precision(
    params: "Params", stage: str, *, cluster: "Cluster", work: Location, say: Say
) -> "Params":
    """Return `params` with the precision of the section `stage` replaced if it is `auto`.

    While the folder `work` has work in progress, the choice stays the same, so that the work can
    resume. `say` gets a line about it.
    """
    section: Any = getattr(params, stage)
    settings = getattr(section, "training", section)
    if getattr(section, "model", "") or settings.precision != "auto":
        return params  # a model that is copied computes nothing
    setting = f"{stage}.training.precision" if settings is not section else f"{stage}.precision"
    device, record_file = "cuda" if cluster.gpu else "cpu", _RECORD_FILE.format(stage)
    previous_choice = None
    if work.exists(record_file) and work.folders():
        previous_choice = work.read_record(record_file, AutoPrecision)
    if previous_choice is not None and previous_choice.device == device:
        precision = previous_choice.precision
        say(f"{setting}: auto chose {precision}, as in the unfinished work")
    else:
        precision = choose_precision("auto", setting=setting, device=device, say=say)
        work.write_json(record_file, {"precision": precision, "device": device})
    new_section = settings = replace(settings, precision=precision)
    if hasattr(section, "training"):
        new_section = replace(section, training=settings)
    new_params: Params = replace(params, **{stage: new_section})
    return new_params


def forget_precision(work: Location, stage: str) -> None:
    """Delete the recorded choice for `precision: auto`; call it when the stage is done."""
    if work.exists(_RECORD_FILE.format(stage)):
        work.delete(_RECORD_FILE.format(stage))
