"""How fast this machine multiplies matrices in either precision, so that a log can say which pays.

Some processors have units for bfloat16 and some only imitate it: the factor goes from 0.2 to 7.
"""

import time

import torch

PRECISIONS = ("float32", "bfloat16")
WORTH = 1.25  # a hint is due from this factor on
_ROWS, _WIDTH, _REPEATS = 512, 1024, 4


def gflops(device: torch.device) -> dict[str, float]:
    """Thousand million operations a second of a product (512, 1024) × (1024, 1024)."""
    return {f"{name}_gflops": _measure(getattr(torch, name), device) for name in PRECISIONS}


def hint(chosen: str, speeds: dict[str, float]) -> str | None:
    """One line where the precision that was not chosen is clearly faster here."""
    (other,) = (name for name in PRECISIONS if name != chosen)
    factor = speeds[f"{other}_gflops"] / speeds[f"{chosen}_gflops"]
    if factor < WORTH:
        return None
    return (
        f"matrix products are {factor:.1f} × as fast in {other} as in {chosen} here; "
        f"training.precision: {other} would use that"
    )


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
