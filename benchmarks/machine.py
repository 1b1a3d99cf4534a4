"""Describe this machine; every benchmark prints the description with its figures.

python -m benchmarks.machine
"""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CPU_INFO = Path("/proc/cpuinfo")
INSTRUCTION_SETS = {  # by their names in /proc/cpuinfo
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX",
    "asimd": "NEON",
    "bf16": "BF16",
    "sve": "SVE",
}


def describe_machine() -> dict[str, Any]:
    """Return the processor, its instruction sets for matrices, cores, GPU and torch version."""
    text = CPU_INFO.read_text(encoding="utf-8") if CPU_INFO.exists() else ""
    lines = [line.partition(":") for line in text.splitlines()]
    values = {key.strip(): value.strip() for key, _, value in lines}
    flags = (values.get("flags") or values.get("Features") or "").split()
    limits = {name: os.environ[name] for name in LIMITING_VARIABLES if name in os.environ}
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": values.get("model name") or platform.processor() or platform.machine(),
        "units": [name for flag, name in INSTRUCTION_SETS.items() if flag in flags],
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu,
        "torch": torch.__version__,
    } | limits


def precisions() -> list[str]:
    """Return the precisions to measure: not bfloat16 if the CPU emulates it, which takes hours."""
    from elmo.train import machine_speed  # not importable in a peer's environment

    speeds = machine_speed.measure_matrix_speeds(torch.device("cpu"))
    return ["float32"] + ["bfloat16"] * (speeds.speedup("float32", "bfloat16") < 3)


def matrix_peak(precision: str, *, size: int = 4096, repeat: int = 10) -> float:
    """Return the GFLOP/s of a product of two square matrices: the faster of torch and oneDNN.

    In float32, torch uses MKL, which on some processors is much slower than oneDNN.
    """
    a = torch.randn(size, size).to(getattr(torch, precision))
    products: list[Callable[[], object]] = [lambda: a @ a]
    if precision == "float32" and torch.backends.mkldnn.is_available():
        layout = torch.ops.mkldnn._reorder_linear_weight(a.clone(), size)
        products.append(lambda: torch.ops.mkldnn._linear_pointwise(a, layout, None, "none", [], ""))
    with torch.inference_mode():
        seconds = min(_measure_seconds(product) for product in products for _ in range(repeat))
    return round(2 * size**3 / seconds / 1e9)


def _measure_seconds(product: Callable[[], object]) -> float:
    start_time = time.perf_counter()
    product()
    return time.perf_counter() - start_time


LIMITING_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")


def print_figures(figures: dict[str, Any]) -> None:
    """Print a benchmark's figures as JSON, with the machine they were measured on."""
    print(json.dumps(figures | {"machine": describe_machine()}, indent=1))


if __name__ == "__main__":
    print_figures({})
