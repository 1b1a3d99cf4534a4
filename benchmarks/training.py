"""Compare our training step with other implementations, and one worker with two.

    python -m benchmarks.training TEXT steps|workers [--threads 2] [--repeat 3] [--steps 8]
        [--rows 128] [--network small|original|default] [--ours]

TEXT has one sentence per line, tokens between spaces. The network is the small one (2 × 1024 cells,
projection 128, 2048 filters, 1 highway), the original of 2018 (2 × 4096, 512, 2048, 2) or that of
params.yaml; the recipe is that of 2018 (128 × 20 tokens, 8192 candidates, Adagrad, dropout 0.1).

`steps`   our step in float32 and bfloat16, the same model under plain autograd (the character
          network on distinct tokens), and torch.nn.LSTM(proj_size), which can't clip, both under
          autocast for bfloat16; with the matrix peak of the same run, and the share of it that
          our step reaches (its matrix products, counted by shape); with `--ours` our step alone
`workers` one worker with one core against two

Sides run in turn, each pass a process of its own; those in bfloat16 only where the machine has
units for it. Prints JSON: tokens a second and CPU seconds of a step (medians), ratios taken pair by
pair, peak memory; of our step also operations and the MB that they read and write.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import matrix_peak, precisions, show

WINDOW = 20
SIDES = ("ours", "autograd-distinct", "nn.LSTM")


def main() -> None:
    """Run the sides in turn and print the figures."""
    options = _parse_options()
    if options.side:
        print(json.dumps(_side(options)))
        return
    compare = {"steps": _steps, "workers": _workers}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        prepare_text(options.text, Path(folder))
        show(compare(options, folder))


def _steps(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    names = SIDES[:1] if options.ours else SIDES
    sides = [f"{name} {precision}" for name in names for precision in precisions()]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.repeat):
        for side, side_runs in runs.items():
            side_runs.append(run(options, folder, side)[0])
    peak = run(options, folder, "peak float32")[0]
    figures: dict[str, Any] = {"peak_gflops": peak}
    for precision in precisions():
        figures[f"count {precision}"] = run(options, folder, f"count {precision}")[0]
    figures["mflop_a_token"] = figures["count float32"]["mflop_a_token"]
    for side, side_runs in runs.items():
        figures[side] = figures_of(side_runs)
    for precision in precisions():
        rate = figures[f"ours {precision}"]["tokens_per_second"] * figures["mflop_a_token"] / 1000
        figures[f"ours {precision} / matrix peak"] = round(rate / peak[f"{precision}_gflops"], 2)
    for side in sides[len(precisions()) :]:
        our_side = f"ours {side.split()[1]}"
        figures[f"{our_side} / {side}"] = ratio(runs[our_side], runs[side])
    return figures


def _workers(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    options.threads = 1
    figures: dict[str, Any] = {}
    for precision in precisions():
        alone_runs, pair_runs = [], []
        for _ in range(options.repeat):
            alone_runs.append(run(options, folder, f"ours {precision}")[0])
            pair_runs.append(run(options, folder, f"ours {precision}", size=2)[0])
        figures[f"ours {precision}"] = {
            "one": figures_of(alone_runs),
            "two": figures_of(pair_runs),
            "ratio": ratio(pair_runs, alone_runs),
        }
    return figures


def figures_of(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "tokens_per_second": round(median(run["rate"] for run in runs)),
        "runs": [round(run["rate"]) for run in runs],
        "cpu_seconds_a_step": round(median(run["cpu"] for run in runs), 4),
        "peak_memory_mb": round(max(run["memory"] for run in runs)),
    }


def ratio(runs: list[dict[str, float]], peer_runs: list[dict[str, float]]) -> float:
    return round(median(a["rate"] / b["rate"] for a, b in zip(runs, peer_runs, strict=True)), 2)


def run(
    options: argparse.Namespace, folder: str, side: str, *, size: int = 1
) -> list[dict[str, float]]:
    Path(folder, "meeting").unlink(missing_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": root}
    command = [sys.executable, "-m", "benchmarks.training", folder, options.what, "--side", side]
    command += ["--size", str(size), "--network", options.network]
    for name in ("threads", "steps", "rows"):
        command += [f"--{name}", str(getattr(options, name))]
    workers = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"error: {side} failed")
    return [json.loads(text.strip().splitlines()[-1]) for text in outputs]


def _side(options: argparse.Namespace) -> dict[str, float]:
    import torch

    from elmo.nn.memory import keep_freed_memory

    keep_freed_memory()  # as the process of a training does; the others' steps gain by it too
    torch.set_num_threads(options.threads)
    name, precision = options.side.split()
    if name == "peak":
        return _measure_peak()
    from benchmarks import training_sides

    if options.size > 1:
        meeting = f"file://{options.text.absolute()}/meeting"
        torch.distributed.init_process_group(
            "gloo", init_method=meeting, rank=options.rank, world_size=options.size
        )
    windows, step = training_sides.prepare_steps(
        "ours" if name == "count" else name,
        precision,
        options.text,
        network=options.network,
        rows=options.rows,
        window=WINDOW,
        count=options.steps + 3,
        rank=options.rank,
        size=options.size,
    )
    if name == "count":
        counts = [training_sides.count(step, window, k) for k, window in enumerate(windows)]
        flop, operations, traffic = (median(column) for column in zip(*counts, strict=True))
        per_token = round(flop / (options.rows * WINDOW) / 1e6, 1)
        return {"mflop_a_token": per_token, "operations": operations, "mb": round(traffic / 1e6)}
    seconds, cpu = [], []
    for number, window in enumerate(windows):
        began, cpu_began = time.perf_counter(), time.process_time()
        step(window, number)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
    return {
        "rate": options.rows * WINDOW / median(seconds[3:]),
        "cpu": median(cpu[3:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _measure_peak() -> dict[str, float]:
    return {f"{precision}_gflops": matrix_peak(precision) for precision in precisions()}


def prepare_text(text: Path, folder: Path) -> None:
    """The text and its shards, once for all sides."""
    from benchmarks.lm_text import prepare

    shutil.copy(text, folder / "text")
    prepare(folder / "shards", train=folder / "text", heldout=folder / "text")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("what", choices=["steps", "workers"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--network", choices=["small", "original", "default"], default="small")
    parser.add_argument("--ours", action="store_true", help="time our own step alone")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
