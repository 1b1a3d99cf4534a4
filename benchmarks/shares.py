"""Which share of the machine's matrix peak our embedding and our training step reach.

    python -m benchmarks.shares TEXT [--repeat 1] [--steps 5] [--sentences 800]

TEXT has one sentence per line, tokens between spaces. The networks are those of
`benchmarks.training`, each in float32 and, where the machine has units for it, in bfloat16; the
operations of matrix products are counted by shape, and the peak is measured in each run. Prints
JSON: by work and network the share in each precision, with tokens a second.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import show
from benchmarks.training_sides import NETWORKS, embedding_flop

EMBEDDED = ("small", "original")
TRAINED = ("small", "original", "default")


def main() -> None:
    """Run our sides of the two benchmarks and print what they reach."""
    options = _options()
    text, repeat = str(options.text), ["--repeat", str(options.repeat)]
    figures: dict[str, Any] = {}
    for size in EMBEDDED:
        sentences = ["--sentences", str(options.sentences)]
        runs = _run("embedding", text, "--size", size, *sentences, *repeat)
        flop = embedding_flop(NETWORKS[size])
        figures[f"embedding, {size}"] = {
            precision: _share(runs[f"ours {precision}"]["tokens_per_second"], flop, peak)
            for precision, peak in runs["matrix_peak_gflops"].items()
        }
    for network in TRAINED:
        steps = ["--steps", str(options.steps), "--network", network, "--ours"]
        runs = _run("training", text, "steps", *steps, *repeat)
        flop = runs["mflop_a_token"] * 1e6
        figures[f"training, {network}"] = {
            name.removesuffix("_gflops"): _share(
                runs[f"ours {name.removesuffix('_gflops')}"]["tokens_per_second"],
                flop,
                peak,
            )
            for name, peak in runs["peak_gflops"].items()
        }
    show(figures)


def _share(rate: float, flop: float, peak: float) -> dict[str, float]:
    return {
        "share": round(rate * flop / 1e9 / peak, 3),
        "tokens_per_second": rate,
        "peak_gflops": peak,
    }


def _run(module: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", f"benchmarks.{module}", *words]
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
