"""Measure the share of this machine's peak of matrix products that embedding and training reach.

    python -m benchmarks.shares TEXT [--repeat 1] [--steps 5] [--sentences 800]

TEXT has one sentence per line, with tokens separated by spaces. The networks are those of
`benchmarks.training`, each in float32 and, if the CPU supports it, in bfloat16. The operations of
matrix products are counted from their shapes, and the peak is measured in each run. Prints JSON:
the share and tokens per second, by work, network and precision.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import show
from benchmarks.training_sides import NETWORKS, embedding_flop

EMBEDDING_NETWORKS = ("small", "original")
TRAINING_NETWORKS = ("small", "original", "default")


def main() -> None:
    """Run our side of the two benchmarks; print each share of the measured peak."""
    options = _options()
    text, repeat = str(options.text), ["--repeat", str(options.repeat)]
    figures: dict[str, Any] = {}
    for size in EMBEDDING_NETWORKS:
        sentences = ["--sentences", str(options.sentences)]
        results = _run_benchmark("embedding", text, "--size", size, *sentences, *repeat)
        flop = embedding_flop(NETWORKS[size])
        figures[f"embedding, {size}"] = {
            precision: _share(results[f"ours {precision}"]["tokens_per_second"], flop, peak)
            for precision, peak in results["matrix_peak_gflops"].items()
        }
    for network in TRAINING_NETWORKS:
        steps = ["--steps", str(options.steps), "--network", network, "--ours"]
        results = _run_benchmark("training", text, "steps", *steps, *repeat)
        flop = results["mflop_a_token"] * 1e6
        figures[f"training, {network}"] = {
            name.removesuffix("_gflops"): _share(
                results[f"ours {name.removesuffix('_gflops')}"]["tokens_per_second"],
                flop,
                peak,
            )
            for name, peak in results["peak_gflops"].items()
        }
    show(figures)


def _share(tokens_per_second: float, token_flop: float, peak_gflops: float) -> dict[str, float]:
    return {
        "share": round(tokens_per_second * token_flop / 1e9 / peak_gflops, 3),
        "tokens_per_second": tokens_per_second,
        "peak_gflops": peak_gflops,
    }


def _run_benchmark(module: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if process.returncode:
        sys.exit(f"error: benchmarks.{module} ended with {process.returncode}; its words are above")
    figures: dict[str, Any] = json.loads(process.stdout[process.stdout.index("{") :])
    return figures


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=800)
    return parser.parse_args()


if __name__ == "__main__":
    main()
