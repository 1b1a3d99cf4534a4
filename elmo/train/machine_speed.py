"""How fast this machine multiplies matrices in either precision, so that a log can say which pays.

Some processors have units for bfloat16 and some only imitate it: the factor goes from 0.2 to 7.
"""

import time
from pathlib import Path

import torch

from elmo.settings import PRECISIONS

WORTH = 1.25  # a hint is due from this factor on
_ROWS, _WIDTH, _REPEATS = 512, 1024, 4
_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = ("flags", "Features")  # as x86-64 and as ARM calls them
_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}


def gflops(device: torch.device) -> dict[str, float]:
    """Thousand million operations per second of a product (512, 1024) × (1024, 1024)."""
    return {f"{name}_gflops": _measure(getattr(torch, name), device) for name in PRECISIONS}


def hint(chosen: str, speeds: dict[str, float]) -> str | None:
    """One line where the precision that was not chosen is clearly faster on this machine."""
    (other,) = (name for name in PRECISIONS if name != chosen)
    factor = speeds[f"{other}_gflops"] / speeds[f"{chosen}_gflops"]
    if factor < WORTH:
        return None
    return (
        f"matrix products are {factor:.1f} × as fast in {other} as in {chosen} here; "
        f"training.precision: {other} would use that"
    )


def emulates_bfloat16() -> bool:
    """Whether this machine's processor has no units for bfloat16 and imitates it.

    Linux tells which instructions there are; elsewhere a product in either precision is timed.
    """
    try:
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        speeds = gflops(torch.device("cpu"))
        return speeds["bfloat16_gflops"] < speeds["float32_gflops"] / 2
    lines = (line.partition(":") for line in text.splitlines())
    flags = {flag for key, _, value in lines for flag in value.split() if key.strip() in _FLAGS}
    return flags.isdisjoint(_UNITS)


def _measure(precision: torch.dtype, device: torch.device) -> float:
    a = torch.ones(_ROWS, _WIDTH, dtype=precision, device=device)
    b = torch.ones(_WIDTH, _WIDTH, dtype=precision, device=device)
    best = float("inf")
    for _ in range(_REPEATS):
        began = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return 2 * _ROWS * _WIDTH * _WIDTH / best / 1e9
