"""Measure how fast training and embedding are on a GPU.

    python -m benchmarks.gpu TEXT [--words 793471] [--rows 128 1024] [--steps 25] [--seconds 570]
        [--networks original small default] [--sentences 8000] [--profile FOLDER]

TEXT has one sentence per line, with tokens separated by spaces. Without a CUDA device, the command
runs on the CPU, which only tests it. Networks and recipe are those of `benchmarks.training`, in
float32 (without TF32) and bfloat16. The vocabulary has `--words` words, by default as in 2018.
As in training, another process prepares the windows, and the figures of a step are read during the
next step. Each measurement is a separate process; the matrix peak and then the most important ones
come first. Each prints its result to standard error. No measurement starts after `--seconds`, and
if one fails, the others still run. Prints JSON: tokens per second and their share of the matrix
peak, the time of a step, and memory; the same without CUDA graphs; and whether two trainings give
identical weights. With `--profile`, kernel times go to files in FOLDER.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.embedding import make_weights, read_sentences
from benchmarks.lm_text import prepare_shards
from benchmarks.machine import print_figures
from benchmarks.training_sides import (
    NETWORKS,
    count_operations,
    embedding_flop,
    new_stepper,
    open_stream,
    recipe_2018,
)
from elmo.data.shards import Shards
from elmo.model.embedder import Embedder
from elmo.nn import cuda_graphs
from elmo.nn.device import default_device, exact_float32
from elmo.settings import PRECISIONS, StoreSettings
from elmo.store.build import build
from elmo.train.step import Stepper, WorkerGroup

DEVICE = torch.device(default_device())
WARM_UP = 6  # untimed steps, which compile and capture graphs
WINDOW = 20
EMBEDDING_NETWORKS = ("small", "original", "tiny")


def main() -> None:
    """Measure each workload in a separate process and print the figures."""
    options = _parse_options()
    if options.side:
        options = argparse.Namespace(**vars(options) | options.side)
        print(json.dumps(MEASURE_BY_WORKLOAD[options.workload](options)))
        return
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder, "shards")
        _, vocabulary = prepare_shards(shards, train=options.text, heldout=options.text)
        options.words = max(options.words, len(vocabulary))
        print_figures(_measure_all(options, folder))


def _measure_all(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    deadline = time.monotonic() + options.seconds
    for workload, network, precision, rows, graphs in _plan_measurements(options):
        if time.monotonic() > deadline:
            break
        parts = [workload, network, precision, rows and f"{rows} rows", not graphs and "no graphs"]
        name = ", ".join(part for part in parts if part)
        figures[name] = _run_measurement(
            options, folder, workload, network, precision, rows, graphs=graphs
        )
        tflops = figures[name].get("tflops", 0)
        if workload == "embedding" and "tokens_per_second" in figures[name]:
            flop = embedding_flop(NETWORKS[network])
            tflops = figures[name]["tokens_per_second"] * flop / 1e12
        peak = figures[f"peak, {precision}"].get("tflops")
        if peak and tflops and workload != "peak":
            figures[name]["share"] = round(tflops / peak, 3)
        print(json.dumps({name: figures[name]}), file=sys.stderr, flush=True)
    return figures


def _plan_measurements(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int, bool]]:
    """Yield the workload, network, precision, rows and CUDA graphs of each measurement."""
    for precision in reversed(PRECISIONS):  # bfloat16 first
        yield "peak", "", precision, 0, True
        for network in options.networks:
            for rows in sorted(options.rows, reverse=True):
                yield "training", network, precision, rows, True
            if network in EMBEDDING_NETWORKS:
                yield "embedding", network, precision, 0, True
        for network in options.networks[-1:]:
            yield "twice", network, precision, options.rows[0], True
    for network in options.networks[:1]:
        yield "training", network, "bfloat16", options.rows[0], False


def _run_measurement(
    options: argparse.Namespace,
    folder: str,
    workload: str,
    network: str,
    precision: str,
    rows: int = 0,
    *,
    graphs: bool = True,
) -> dict[str, Any]:
    side = {"workload": workload, "folder": folder, "network": network, "precision": precision}
    arguments = ["--side", json.dumps(side | {"rows": rows})]
    for name in ("words", "steps", "sentences", "profile"):
        if value := getattr(options, name):
            arguments += [f"--{name}", str(value)]
    command = [sys.executable, "-m", "benchmarks.gpu", str(options.text), *arguments]
    environment = os.environ | {"ELMO_CUDA_GRAPHS": "1" if graphs else "0"}
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if child.returncode:
        return {"exit_code": child.returncode}
    figures: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return figures


def _measure_peak(options: argparse.Namespace) -> dict[str, Any]:
    """Time a product of two 8192 × 8192 matrices, on a CPU of two 256 × 256 matrices."""
    size = 8192 if DEVICE.type == "cuda" else 256
    precision = getattr(torch, options.precision)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=precision) for _ in "ab")
    with exact_float32(DEVICE):
        seconds = sorted(_measure_seconds(lambda: torch.mm(a, b)) for _ in range(9))
    return {"tflops": round(2 * size**3 / seconds[4] / 1e12, 1)}


def _measure_training(options: argparse.Namespace) -> dict[str, Any]:
    stepper = _make_stepper(options)
    seconds, main_thread_seconds = _time_steps(options, stepper)
    rate = options.rows * WINDOW / seconds
    graphs = [g for device in cuda_graphs._graphs.values() for g in device.graph_by_key.values()]
    figures = {
        "tokens_per_second": round(rate),
        "ms_a_step": round(1000 * seconds, 2),
        "ms_of_main_thread": round(1000 * main_thread_seconds, 2),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "graphs": len(graphs),
        "graphs_gb": round(sum(graph.bytes for graph in graphs) / 1e9, 2),
    }
    if options.profile:
        _profile(options, lambda: _time_steps(options, stepper, steps=5, warm_up=0))
    os.environ["ELMO_CUDA_GRAPHS"] = "0"
    flop = _count_flop(options, stepper) / (options.rows * WINDOW)
    return figures | {"tflops": round(rate * flop / 1e12, 1)}


def _compare_two_trainings(options: argparse.Namespace) -> dict[str, Any]:
    """Tell whether two trainings give identical weights."""
    weights = []
    for _ in range(2):
        stepper = _make_stepper(options)
        _time_steps(options, stepper)
        weights.append([*stepper.bilm.parameters(), *stepper.softmax.parameters()])
    pairs = zip(*weights, strict=True)
    return {"equal": all(torch.equal(a, b) for a, b in pairs)}


def _make_stepper(options: argparse.Namespace) -> Stepper:
    recipe = recipe_2018(options.precision, rows=options.rows, window=WINDOW)
    return new_stepper(NETWORKS[options.network], recipe, options.words, WorkerGroup(device=DEVICE))


def _read_windows(options: argparse.Namespace, stepper: Stepper) -> Generator[Any, None, None]:
    folder, rows = Path(options.folder, "shards"), options.rows
    stream = open_stream(folder, options.text, WorkerGroup(), rows=rows, window=WINDOW)
    return stepper.read_steps(stream, stream.first_position(), step=0)


def _time_steps(
    options: argparse.Namespace, stepper: Stepper, *, steps: int = 0, warm_up: int = WARM_UP
) -> tuple[float, float]:
    """Return the seconds per step: elapsed, and CPU time of the main thread with busy waits."""
    steps = steps or options.steps
    state = stepper.bilm.lstm.zero_state(options.rows)
    previous_figures, start_time, cpu_start, step_count = None, 0.0, 0.0, 0
    windows = _read_windows(options, stepper)
    with exact_float32(DEVICE), closing(windows):
        for number, (window, _) in zip(range(warm_up + steps), windows, strict=False):
            if number == warm_up:
                _synchronize()
                start_time, cpu_start = time.perf_counter(), time.thread_time()
            figures, state = stepper.step(window, state, step=number)
            if previous_figures is not None:
                _ = previous_figures.gradient_norm
            previous_figures = figures
            step_count = number + 1
        _synchronize()
    if step_count < (required := warm_up + steps):
        sys.exit(f"error: {options.text}: has {step_count} steps, must have {required}; add text")
    return (time.perf_counter() - start_time) / steps, (time.thread_time() - cpu_start) / steps


def _count_flop(options: argparse.Namespace, stepper: Stepper) -> int:
    """Return the floating-point operations of the matrix products of one step."""
    with closing(_read_windows(options, stepper)) as windows:
        window, _ = next(windows)
    state = stepper.bilm.lstm.zero_state(options.rows)
    # A function that is first called while operations are counted would never be compiled.
    with exact_float32(DEVICE), torch.compiler.set_stance("force_eager"):
        return count_operations(lambda window, k: stepper.step(window, state, step=k), window, 0)[0]


def _measure_embedding(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(options.folder, options.network)
    if not folder.exists():
        folder.mkdir()
        make_weights(folder, options.network)
    embedder = Embedder.load(folder / "model", device=DEVICE.type, precision=options.precision)
    embedder.bilm.lstm.compiled = True
    sentences = read_sentences(options)
    sentence = sentences[len(sentences) // 2][:20]
    for _ in range(2):
        embedder.embed(sentences)
    seconds = _measure_seconds(lambda: embedder.embed(sentences))
    embedder.embed([sentence])
    sentence_seconds = min(_measure_seconds(lambda: embedder.embed([sentence])) for _ in range(20))
    if options.profile:
        _profile(options, lambda: embedder.embed(sentences[:2000]))
    shards, settings = Path(options.folder, "shards"), StoreSettings(precision=options.precision)
    inputs: dict[str, Any] = {"shards": shards, "model": folder / "model", "device": DEVICE.type}
    store_seconds = _measure_seconds(
        lambda: build(folder / f"store-{options.precision}", settings=settings, **inputs)
    )
    return {
        "tokens_per_second": round(sum(map(len, sentences)) / seconds),
        "tokens_per_second_to_a_store": round(Shards(shards).tokens() / store_seconds),
        "ms_of_one_sentence": round(1000 * sentence_seconds, 2),
    }


def _profile(options: argparse.Namespace, function: Callable[[], object]) -> None:
    with torch.profiler.profile() as profiler:
        tables = [f"{_measure_seconds(function):.3f} s"]
    averages = profiler.key_averages()
    for key in ("self_cuda_time_total", "self_cpu_time_total"):
        tables.append(averages.table(sort_by=key, row_limit=45, max_name_column_width=90))
    names = (options.workload, options.network, options.precision, str(options.rows))
    options.profile.mkdir(exist_ok=True)
    file = options.profile / ("-".join(names) + ".txt")
    file.write_text("\n".join(tables), encoding="utf-8")


def _synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def _measure_seconds(function: Callable[[], object]) -> float:
    _synchronize()
    start_time = time.perf_counter()
    function()
    _synchronize()
    return time.perf_counter() - start_time


MEASURE_BY_WORKLOAD = {
    "peak": _measure_peak,
    "training": _measure_training,
    "twice": _compare_two_trainings,
    "embedding": _measure_embedding,
}


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--words", type=int, default=793_471)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--sentences", type=int, default=8000)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 1024])
    networks = ["original", "small", "default"]
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=networks)
    parser.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
