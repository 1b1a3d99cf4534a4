"""Training steps of a process that keeps the memory it frees, against one that returns it.

    python -m benchmarks.freed_memory [--steps 12] [--repeat 3]

Each side takes steps of the network of params.yaml on two threads, in a process of its own, and the
sides take turns. Prints JSON: by precision tokens a second (medians), the ratio pair by pair, and
the page faults of a step: pages that the process asked the system for again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import precisions, show

ROOT = Path(__file__).resolve().parents[1]
SIDES = ("kept", "returned")


def main() -> None:
    """Run the sides in turn and print the figures."""
    options = _options()
    if options.side:
        print(json.dumps(_side(options)))
        return
    figures: dict[str, Any] = {}
    for precision in precisions():
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(options.repeat):
            for side, each in runs.items():
                each.append(_run(options, side, precision))
        figures[precision] = {
            side: {
                "tokens_per_second": round(median(run["rate"] for run in each)),
                "page_faults_a_step": round(median(run["faults"] for run in each)),
            }
            for side, each in runs.items()
        }
        pairs = zip(runs["kept"], runs["returned"], strict=True)
        ratio = median(kept["rate"] / returned["rate"] for kept, returned in pairs)
        figures[precision]["ratio"] = round(ratio, 3)
    show(figures)


def _run(options: argparse.Namespace, side: str, precision: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.freed_memory", "--steps", str(options.steps)]
    command += ["--side", side, "--precision", precision]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _side(options: argparse.Namespace) -> dict[str, float]:
    from benchmarks.training_sides import default_steps
    from elmo.nn.memory import keep_freed_memory

    if options.side == "kept":
        keep_freed_memory()
    step, tokens = default_steps(options.precision)
    faults, began = _faults(), time.perf_counter()
    for _ in range(options.steps):
        step()
    seconds = time.perf_counter() - began
    return {
        "rate": options.steps * tokens / seconds,
        "faults": (_faults() - faults) / options.steps,
    }


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="float32", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
