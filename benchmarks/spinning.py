"""Two threads that wait for each other by spinning: alone, and beside a process that keeps a core.

    python -m benchmarks.spinning [--steps 8] [--repeat 3] [--counts 10000]

A thread of a product that is done early waits for the others; OpenMP lets it spin for milliseconds,
which is a core that the slower one may need. `elmo` bounds that (`GOMP_SPINCOUNT`). Each side takes
training steps of the network of params.yaml on two threads, in a process of its own, and the sides
take turns; `sleeping` does not spin at all. Prints JSON: tokens a second, medians.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.machine import show

ROOT = Path(__file__).resolve().parents[1]
_SET = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")


def main() -> None:
    """Run the sides in turn and print the figures."""
    options = _options()
    if options.side:
        print(_tokens_per_second(options.steps, options.precision))
        return
    sides: dict[str, dict[str, str]] = {"as OpenMP does": {}, "sleeping": {_SET[1]: "PASSIVE"}}
    sides |= {f"{count} spins": {_SET[0]: str(count)} for count in options.counts}
    runs: dict[str, dict[str, list[float]]] = {"alone": {}, "beside a busy process": {}}
    for _ in range(options.repeat):
        for where, each in runs.items():
            for side, variables in sides.items():
                with _busy(where != "alone"):
                    each.setdefault(side, []).append(_run(options, variables))
    show(
        {
            where: {
                side: {"tokens_per_second": round(median(rates)), "runs": [*map(round, rates)]}
                for side, rates in each.items()
            }
            for where, each in runs.items()
        }
    )


def _run(options: argparse.Namespace, variables: dict[str, str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in _SET}
    environment |= {"OMP_NUM_THREADS": "2", **variables}
    command = [sys.executable, "-m", "benchmarks.spinning", "--side"]
    command += ["--steps", str(options.steps), "--precision", options.precision]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout))


@contextmanager
def _busy(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def _tokens_per_second(steps: int, precision: str) -> float:
    from benchmarks.training_sides import default_steps

    step, tokens = default_steps(precision)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * tokens / (time.perf_counter() - began)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[10000])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
