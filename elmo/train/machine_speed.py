"""The speed of this machine's matrix products in each precision, to choose between them.

Some CPUs have units for bfloat16 and others emulate it: it is between 7 times as fast as float32
and 200 times slower. The CPU's feature list does not decide this, since environment limits or
missing library kernels matter too, so products are timed, for about a second, once per machine.
"""

import hashlib
import os
import platform
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.cache import user_cache
from elmo.io.records import read_record
from elmo.settings import PRECISIONS, Precision

WORTH = 1.25  # a precision is called faster from this factor on
_ROWS, _WIDTH, _REPEATS = 512, 1024, 25  # the best of many
_PROBE_ROWS = 16  # of a first product, which shows whether the whole one takes too long
_LONGEST = 0.5  # seconds a product may take to be timed whole, and all of one precision
_CPU_INFO = Path("/proc/cpuinfo")
# What oneDNN and PyTorch read when they choose their instructions.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


class MatrixSpeeds(msgspec.Struct, forbid_unknown_fields=True):
    """The speed of matrix products in GFLOP/s, by precision."""

    float32_gflops: float
    bfloat16_gflops: float

    def speedup(self, precision: Precision, baseline: Precision) -> float:
        """Return how many times as fast products are in `precision` as in `baseline`."""
        rates = {"float32": self.float32_gflops, "bfloat16": self.bfloat16_gflops}
        return rates[precision] / max(rates[baseline], 1e-9)


def measure_gflops(device: torch.device) -> dict[str, float]:
    """Measure the speed of a matrix product (512, 1024) × (1024, 1024) in each precision.

    Return GFLOP/s, as the fields of `MatrixSpeeds`.
    """
    return {f"{name}_gflops": _measure(getattr(torch, name), device) for name in PRECISIONS}


def matrix_speeds(device: torch.device) -> MatrixSpeeds:
    """Return the speed of this machine's matrix products in each precision.

    It is measured once and then cached in the user's cache folder; `ElmoError` names the cached
    file if it is damaged.
    """
    path = measurement_path(device)
    if path.exists():
        return read_record(path, MatrixSpeeds)
    speeds = MatrixSpeeds(**measure_gflops(device))
    with suppress(OSError, ElmoError):  # no home to write to: it is measured again
        write_json(path, msgspec.to_builtins(speeds))
    return speeds


def faster_precision(speeds: MatrixSpeeds) -> Precision:
    """Return the precision that `auto` means: bfloat16 if its matrix products are at least `WORTH`
    (1.25) times as fast, else float32."""
    return "bfloat16" if speeds.speedup("bfloat16", "float32") >= WORTH else "float32"


def measurement_path(device: torch.device) -> Path:
    """Return the file in which the measurement on this machine is cached.

    Its name depends on the CPU or GPU, the threads, the torch version and limits in the
    environment, so a change of these means a new measurement.
    """
    lines: list[str] = []
    if device.type == "cuda":
        lines.append(torch.cuda.get_device_name(device))
    with suppress(OSError):
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
        lines += sorted({line for line in text.splitlines() if line.startswith(_CPU_LINES)})
    lines += [platform.machine(), platform.processor(), torch.__version__, device.type]
    lines += [str(torch.get_num_threads()), *(os.environ.get(name, "") for name in _LIMITS)]
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return user_cache() / f"speeds-{key}.json"


_CPU_LINES = ("model name", "flags", "Features")  # the latter two as x86-64 and as ARM call them


def _measure(precision: torch.dtype, device: torch.device) -> float:
    a = torch.ones(_ROWS, _WIDTH, dtype=precision, device=device)
    b = torch.ones(_WIDTH, _WIDTH, dtype=precision, device=device)
    probe = a[:_PROBE_ROWS]
    seconds = min(_seconds(probe, b, device) for _ in range(2)) / _PROBE_ROWS
    if seconds * _ROWS < _LONGEST:
        timed: list[float] = []
        while len(timed) < _REPEATS and sum(timed) < _LONGEST:
            timed.append(_seconds(a, b, device))
        seconds = min(timed) / _ROWS
    return 2 * _WIDTH * _WIDTH / seconds / 1e9


def _seconds(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> float:
    if device.type == "cuda":
        began = time.perf_counter()
        torch.mm(a, b)
        torch.cuda.synchronize(device)
        return time.perf_counter() - began
    began = time.process_time()  # of all threads; what other processes take is left out
    torch.mm(a, b)
    return max(time.process_time() - began, 1e-6) / torch.get_num_threads()
