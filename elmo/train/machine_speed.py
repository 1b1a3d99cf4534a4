"""Measure the speed of matrix products in each precision, to choose one.

Some CPUs have units for bfloat16, others emulate it: it may be 7 times as fast as float32, or 200
times slower. The CPU's feature list does not tell, because environment limits and library kernels
matter too, so products are timed for about a second.
"""

import time
from functools import cache
from typing import NamedTuple

import torch

from elmo.settings import PRECISIONS, Precision

MIN_SPEEDUP = 1.25  # from this factor on, bfloat16 counts as faster
_ROWS, _WIDTH, _REPEATS = 512, 1024, 25  # the fastest repeat counts
_PROBE_ROWS = 16  # rows of a trial product, which shows whether the full one is too slow
_MAX_SECONDS = 0.5  # for one full product, and for all of one precision


class MatrixSpeeds(NamedTuple):
    """The speed of matrix products in GFLOP/s, by precision."""

    float32_gflops: float
    bfloat16_gflops: float

    def speedup(self, precision: Precision, baseline: Precision) -> float:
        """Return the speed of products in `precision`, divided by their speed in `baseline`."""
        rates = dict(zip(PRECISIONS, self, strict=True))
        return rates[precision] / max(rates[baseline], 1e-9)


@cache
def measure_matrix_speeds(device: torch.device) -> MatrixSpeeds:
    """Return the speed of a matrix product (512, 1024) × (1024, 1024) in each precision, measured
    once in this process."""
    return MatrixSpeeds(*(_measure_gflops(getattr(torch, name), device) for name in PRECISIONS))


def choose_faster_precision(speeds: MatrixSpeeds) -> Precision:
    """Return the precision for `auto`: bfloat16 if its matrix products are at least `MIN_SPEEDUP`
    (1.25) times as fast, else float32."""
    return "bfloat16" if speeds.speedup("bfloat16", "float32") >= MIN_SPEEDUP else "float32"


def _measure_gflops(precision: torch.dtype, device: torch.device) -> float:
    left = torch.ones(_ROWS, _WIDTH, dtype=precision, device=device)
    right = torch.ones(_WIDTH, _WIDTH, dtype=precision, device=device)
    first_rows = left[:_PROBE_ROWS]
    seconds = min(_time_product(first_rows, right, device) for _ in range(2)) / _PROBE_ROWS
    if seconds * _ROWS < _MAX_SECONDS:
        times: list[float] = []
        while len(times) < _REPEATS and sum(times) < _MAX_SECONDS:
            times.append(_time_product(left, right, device))
        seconds = min(times) / _ROWS
    return 2 * _WIDTH * _WIDTH / seconds / 1e9


def _time_product(left: torch.Tensor, right: torch.Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        start = time.perf_counter()
        torch.mm(left, right)
        torch.cuda.synchronize(device)
        return time.perf_counter() - start
    start = time.process_time()  # counts all threads of this process
    torch.mm(left, right)
    return max(time.process_time() - start, 1e-6) / torch.get_num_threads()
