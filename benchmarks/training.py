"""Compare our training step with other implementations, or two workers with one.

    python -m benchmarks.training TEXT steps|workers [--threads 2] [--repeat 3] [--steps 8]
        [--rows 128] [--network small|original|default] [--ours]

TEXT has one sentence per line, with tokens separated by spaces. `--network` is small (2 × 1024
cells, projection 128, 2048 filters, 1 highway), original (2 × 4096, 512, 2048, 2) or default (as in
params.yaml). The recipe is that of 2018 (128 × 20 tokens, 8192 candidates, Adagrad, dropout 0.1).

`steps`   compares our step with the same model under plain autograd, where the character network
          also reads only distinct tokens, and with torch.nn.LSTM(proj_size), which cannot clip;
          also measures the matrix peak and the share of it that our step reaches
`workers` compares two workers, each with one core, with one worker

Sides run in turn, and each pass is a separate process. Sides in bfloat16 run only if the CPU
supports it; the other implementations use autocast. Prints JSON: medians of tokens per second and
of CPU seconds per step, the median ratio of the speeds of each pair of passes, and peak memory; for
our step also its number of operations and the MB that they read and write.
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

from benchmarks.machine import matrix_peak, precisions, print_figures

WINDOW = 20
SIDES = ("ours", "autograd-distinct", "nn.LSTM")


def main() -> None:
    """Run all sides in turn and print the figures."""
    options = _parse_options()
    if options.side:
        print(json.dumps(_measure_side(options)))
        return
    measure = {"steps": _compare_steps, "workers": _compare_workers}[options.comparison]
    with tempfile.TemporaryDirectory() as folder:
        prepare_text(options.text, Path(folder))
        print_figures(measure(options, folder))


def _compare_steps(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    names = SIDES[:1] if options.ours else SIDES
    sides = [f"{name} {precision}" for name in names for precision in precisions()]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(options.repeat):
        for side, side_runs in runs.items():
            side_runs.append(run_side(options, folder, side)[0])
    peak = run_side(options, folder, "peak float32")[0]
    figures: dict[str, Any] = {"peak_gflops": peak}
    for precision in precisions():
        figures[f"count {precision}"] = run_side(options, folder, f"count {precision}")[0]
    figures["mflop_a_token"] = figures["count float32"]["mflop_a_token"]
    for side, side_runs in runs.items():
        figures[side] = summarize_runs(side_runs)
    for precision in precisions():
        rate = figures[f"ours {precision}"]["tokens_per_second"] * figures["mflop_a_token"] / 1000
        figures[f"ours {precision} / matrix peak"] = round(rate / peak[f"{precision}_gflops"], 2)
    for side in sides[len(precisions()) :]:
        our_side = f"ours {side.split()[1]}"
        figures[f"{our_side} / {side}"] = median_ratio(runs[our_side], runs[side])
    return figures


def _compare_workers(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    options.threads = 1
    figures: dict[str, Any] = {}
    for precision in precisions():
        single_runs, pair_runs = [], []
        for _ in range(options.repeat):
            single_runs.append(run_side(options, folder, f"ours {precision}")[0])
            pair_runs.append(run_side(options, folder, f"ours {precision}", worker_count=2)[0])
        figures[f"ours {precision}"] = {
            "one": summarize_runs(single_runs),
            "two": summarize_runs(pair_runs),
            "ratio": median_ratio(pair_runs, single_runs),
        }
    return figures


def summarize_runs(runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "tokens_per_second": round(median(run["rate"] for run in runs)),
        "runs": [round(run["rate"]) for run in runs],
        "cpu_seconds_a_step": round(median(run["cpu"] for run in runs), 4),
        "peak_memory_mb": round(max(run["memory"] for run in runs)),
    }


def median_ratio(runs: list[dict[str, float]], peer_runs: list[dict[str, float]]) -> float:
    return round(median(a["rate"] / b["rate"] for a, b in zip(runs, peer_runs, strict=True)), 2)


def run_side(
    options: argparse.Namespace, folder: str, side: str, *, worker_count: int = 1
) -> list[dict[str, float]]:
    Path(folder, "meeting").unlink(missing_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads), "PYTHONPATH": root}
    command = [sys.executable, "-m", "benchmarks.training", folder, options.comparison]
    command += ["--side", side, "--size", str(worker_count), "--network", options.network]
    for name in ("threads", "steps", "rows"):
        command += [f"--{name}", str(getattr(options, name))]
    workers = [
        subprocess.Popen(
            [*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for rank in range(worker_count)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"error: {side} failed; see its output above")
    return [json.loads(text.strip().splitlines()[-1]) for text in outputs]


def _measure_side(options: argparse.Namespace) -> dict[str, float]:
    import torch

    from elmo.io.memory import keep_freed_memory

    keep_freed_memory()  # as in a real training; it makes the other sides faster too
    torch.set_num_threads(options.threads)
    name, precision = options.side.split()
    if name == "peak":
        return _measure_peak()
    from benchmarks import training_sides

    if options.size > 1:
        rendezvous = f"file://{options.text.absolute()}/meeting"
        torch.distributed.init_process_group(
            "gloo", init_method=rendezvous, rank=options.rank, world_size=options.size
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
        counts = [training_sides.count_operations(step, w, k) for k, w in enumerate(windows)]
        flop, operations, traffic = (median(column) for column in zip(*counts, strict=True))
        per_token = round(flop / (options.rows * WINDOW) / 1e6, 1)
        return {"mflop_a_token": per_token, "operations": operations, "mb": round(traffic / 1e6)}
    seconds, cpu = [], []
    for number, window in enumerate(windows):
        start_time, cpu_start = time.perf_counter(), time.process_time()
        step(window, number)
        seconds.append(time.perf_counter() - start_time)
        cpu.append(time.process_time() - cpu_start)
    return {
        "rate": options.rows * WINDOW / median(seconds[3:]),
        "cpu": median(cpu[3:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _measure_peak() -> dict[str, float]:
    return {f"{precision}_gflops": matrix_peak(precision) for precision in precisions()}


def prepare_text(text: Path, folder: Path) -> None:
    """Copy the text to `folder` and write its shards, once for all sides."""
    from benchmarks.lm_text import prepare_shards

    shutil.copy(text, folder / "text")
    prepare_shards(folder / "shards", train=folder / "text", heldout=folder / "text")


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("comparison", choices=["steps", "workers"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--network", choices=["small", "original", "default"], default="small")
    parser.add_argument("--ours", action="store_true", help="measure only our step")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
