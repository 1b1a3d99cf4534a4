"""The speed of this machine's matrix products in each precision, to choose that of embedding.

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
from elmo.io.folders import user_cache
from elmo.io.records import read_record
from elmo.settings import PRECISIONS, Precision

WORTH = 1.25  # a precision is called faster from this factor on
_ROWS, _WIDTH, _REPEATS = 512, 1024, 25  # the best of many
_PROBE_ROWS = 16  # of a first product, which shows whether the whole one takes too long
_LONGEST = 0.5  # seconds a product may take to be timed whole, and all of one precision
_CPU_INFO = Path("/proc/cpuinfo")
# What oneDNN and PyTorch read when they choose their instructions.
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


class Speeds(msgspec.Struct, forbid_unknown_fields=True):
    """The speed of matrix products in GFLOP/s, by precision."""

    float32_gflops: float
    bfloat16_gflops: float

    def factor(self, chosen: Precision, other: Precision) -> float:
        """Return how many times as fast `chosen` is as `other`."""
        rates = {"float32": self.float32_gflops, "bfloat16": self.bfloat16_gflops}
        return rates[chosen] / max(rates[other], 1e-9)


def gflops(device: torch.device) -> dict[str, float]:
    """Measure the GFLOP/s of a product (512, 1024) × (1024, 1024) in each precision."""
    return {f"{name}_gflops": _measure(getattr(torch, name), device) for name in PRECISIONS}


def speeds(device: torch.device) -> Speeds:
    """Return the speed of each precision, measured once and then cached in the user's cache folder.

    `ElmoError` names the cached file if it is damaged.
    """
    path = cached(device)
    if path.exists():
        return read_record(path, Speeds)
    measured = Speeds(**gflops(device))
    with suppress(OSError, ElmoError):  # no home to write to: it is measured again
        write_json(path, msgspec.to_builtins(measured))
    return measured


def fastest(measured: Speeds) -> Precision:
    """Return the precision that `auto` selects for embedding: bfloat16 only if clearly faster."""
    return "bfloat16" if measured.factor("bfloat16", "float32") >= WORTH else "float32"


def cached(device: torch.device, what: str = "speeds", of: str = "") -> Path:
    """Return the cache file of a measurement on this machine in its present state.

    Its name depends on the CPU or GPU, the threads, the torch version and limits in the
    environment. `what` names the measurement, and `of` distinguishes what is measured.
    """
    lines: list[str] = [of] if of else []
    if device.type == "cuda":
        lines.append(torch.cuda.get_device_name(device))
    with suppress(OSError):
        text = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
        lines += sorted({line for line in text.splitlines() if line.startswith(_CPU_LINES)})
    lines += [platform.machine(), platform.processor(), torch.__version__, device.type]
    lines += [str(torch.get_num_threads()), *(os.environ.get(name, "") for name in _LIMITS)]
    key = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return user_cache() / f"{what}-{key}.json"


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
