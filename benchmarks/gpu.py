"""Measure how fast training and embedding are on a GPU.

    python -m benchmarks.gpu TEXT [--words 793471] [--rows 128 1024] [--steps 25] [--seconds 570]
        [--networks original small default] [--sentences 8000] [--profile FOLDER]

TEXT has one sentence per line, tokens between spaces. Without a CUDA device it runs on the CPU,
which only tests the command. The networks and the recipe are those of `benchmarks.training`, in
float32 (exact: no TF32) and bfloat16, with the words of the model of 2018. A process prepares the
windows, as in training, and each step's figures are read one step late. Each measurement is a
process of its own, after a matrix product has shown the GPU's peak. The most telling ones come
first, and each result is a line on standard error at once. No measurement begins after `--seconds`,
and if one fails the others still run. Prints JSON: tokens a second, their share of that peak
(products counted by shape), the time of a step, memory; the same without CUDA graphs; whether two
trainings end in the same bytes. With `--profile`, the kernels of a step and of embedding go to
files in FOLDER.
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

from benchmarks.embedding import make_weights, sentences_of
from benchmarks.lm_text import prepare
from benchmarks.machine import show
from benchmarks.training_sides import (
    NETWORKS,
    count,
    embedding_flop,
    recipe_2018,
    stepper_of,
    stream_of,
)
from elmo.data.shards import Shards
from elmo.model.embedder import Embedder
from elmo.nn import cuda_graphs
from elmo.nn.device import default_device, exact_float32
from elmo.settings import (
    PRECISIONS,
    StoreSettings,
)
from elmo.store.build import build
from elmo.train.step import Stepper, WorkerGroup

DEVICE = torch.device(default_device())
WARM = 6  # steps before those that are timed: they compile, and capture graphs
WINDOW = 20
EMBEDDED = ("small", "original", "tiny")


def main() -> None:
    """Measure each work in a process of its own and print the figures."""
    options = _parse_options()
    if options.side:
        side = argparse.Namespace(**vars(options) | options.side)
        print(json.dumps(WORKS[side.work](side)))
        return
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder, "shards")
        _, vocabulary = prepare(shards, train=options.text, heldout=options.text)
        options.words = max(options.words, len(vocabulary))
        show(_measure_all(options, folder))


def _measure_all(options: argparse.Namespace, folder: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    end = time.monotonic() + options.seconds
    for work, network, precision, rows, graphs in _works(options):
        if time.monotonic() > end:
            break
        name = f"{work}, {network}, {precision}, {rows} rows{'' if graphs else ', no graphs'}"
        figures[name] = _run(options, folder, work, network, precision, rows, graphs=graphs)
        tflops = figures[name].get("tflops", 0)
        if work == "embedding" and "tokens_per_second" in figures[name]:
            flop = embedding_flop(NETWORKS[network])
            tflops = figures[name]["tokens_per_second"] * flop / 1e12
        peak = figures[f"peak, , {precision}, 0 rows"].get("tflops")
        if peak and tflops and work != "peak":
            figures[name]["share"] = round(tflops / peak, 3)
        print(json.dumps({name: figures[name]}), file=sys.stderr, flush=True)
    return figures


def _works(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int, bool]]:
    """Yield what is measured, what tells most first: work, network, precision, rows, graphs."""
    for precision in reversed(PRECISIONS):  # bfloat16 first
        yield "peak", "", precision, 0, True
        for network in options.networks:
            for rows in sorted(options.rows, reverse=True):
                yield "training", network, precision, rows, True
            if network in EMBEDDED:
                yield "embedding", network, precision, 0, True
        for network in options.networks[-1:]:
            yield "twice", network, precision, options.rows[0], True
    for network in options.networks[:1]:
        yield "training", network, "bfloat16", options.rows[0], False


def _run(
    options: argparse.Namespace,
    folder: str,
    work: str,
    network: str,
    precision: str,
    rows: int = 0,
    *,
    graphs: bool = True,
) -> dict[str, Any]:
    side = {"work": work, "folder": folder, "network": network, "precision": precision}
    words = ["--side", json.dumps(side | {"rows": rows})]
    for name in ("words", "steps", "sentences", "profile"):
        if value := getattr(options, name):
            words += [f"--{name}", str(value)]
    command = [sys.executable, "-m", "benchmarks.gpu", str(options.text), *words]
    environment = os.environ | {"ELMO_CUDA_GRAPHS": "1" if graphs else "0"}
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if child.returncode:
        return {"exit_code": child.returncode}
    figures: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return figures


def _measure_peak(options: argparse.Namespace) -> dict[str, Any]:
    """Of a product of 8192 × 8192 × 8192, or of 256 × 256 × 256 on a CPU."""
    size = 8192 if DEVICE.type == "cuda" else 256
    precision = getattr(torch, options.precision)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=precision) for _ in "ab")
    with exact_float32(DEVICE):
        seconds = sorted(_measure_seconds(lambda: torch.mm(a, b)) for _ in range(9))
    return {"tflops": round(2 * size**3 / seconds[4] / 1e12, 1)}


def _measure_training(options: argparse.Namespace) -> dict[str, Any]:
    stepper = _make_stepper(options)
    seconds, of_host = _time_steps(options, stepper)
    rate = options.rows * WINDOW / seconds
    captured = [g for device in cuda_graphs._devices.values() for g in device.captured.values()]
    figures = {
        "tokens_per_second": round(rate),
        "ms_a_step": round(1000 * seconds, 2),
        "ms_of_main_thread": round(1000 * of_host, 2),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "graphs": len(captured),
        "graphs_gb": round(sum(graph.bytes for graph in captured) / 1e9, 2),
    }
    if options.profile:
        _profile(options, lambda: _time_steps(options, stepper, steps=5, warm=0))
    os.environ["ELMO_CUDA_GRAPHS"] = "0"
    flop = _count_operations(options, stepper) / (options.rows * WINDOW)
    return figures | {"tflops": round(rate * flop / 1e12, 1)}


def _compare_two_trainings(options: argparse.Namespace) -> dict[str, Any]:
    """Tell whether two trainings end in the same bytes."""
    ends = []
    for _ in range(2):
        stepper = _make_stepper(options)
        _time_steps(options, stepper)
        ends.append([*stepper.bilm.parameters(), *stepper.softmax.parameters()])
    pairs = zip(*ends, strict=True)
    return {"equal": all(torch.equal(a, b) for a, b in pairs)}


def _make_stepper(options: argparse.Namespace) -> Stepper:
    recipe = recipe_2018(options.precision, rows=options.rows, window=WINDOW)
    return stepper_of(NETWORKS[options.network], recipe, options.words, WorkerGroup(device=DEVICE))


def _read_windows(options: argparse.Namespace, stepper: Stepper) -> Generator[Any, None, None]:
    folder, rows = Path(options.folder, "shards"), options.rows
    stream = stream_of(folder, options.text, WorkerGroup(), rows=rows, window=WINDOW)
    return stepper.read_steps(stream, stream.first_position(), step=0)


def _time_steps(
    options: argparse.Namespace, stepper: Stepper, *, steps: int = 0, warm: int = WARM
) -> tuple[float, float]:
    """Return seconds a step, and those of the main thread's processor time, waits included."""
    steps = steps or options.steps
    state = stepper.bilm.lstm.zero_state(options.rows)
    previous_figures, began, of_host, step_count = None, 0.0, 0.0, 0
    windows = _read_windows(options, stepper)
    with exact_float32(DEVICE), closing(windows):
        for number, (window, _) in zip(range(warm + steps), windows, strict=False):
            if number == warm:
                _wait()
                began, of_host = time.perf_counter(), time.thread_time()
            figures, state = stepper.step(window, state, step=number)
            if previous_figures is not None:
                _ = previous_figures.gradient_norm
            previous_figures = figures
            step_count = number + 1
        _wait()
    if step_count < warm + steps:
        sys.exit(f"error: {options.text} is read in {step_count} steps; {warm + steps} are needed")
    return (time.perf_counter() - began) / steps, (time.thread_time() - of_host) / steps


def _count_operations(options: argparse.Namespace, stepper: Stepper) -> int:
    """Return the operations of a step's products."""
    with closing(_read_windows(options, stepper)) as windows:
        window, _ = next(windows)
    state = stepper.bilm.lstm.zero_state(options.rows)
    # What is first called while operations are counted would never be compiled.
    with exact_float32(DEVICE), torch.compiler.set_stance("force_eager"):
        return count(lambda window, k: stepper.step(window, state, step=k), window, 0)[0]


def _measure_embedding(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(options.folder, options.network)
    if not folder.exists():
        folder.mkdir()
        make_weights(folder, options.network)
    embedder = Embedder.load(folder / "model", device=DEVICE.type, precision=options.precision)
    embedder.bilm.lstm.compiled = True
    sentences = sentences_of(options)
    sentence = sentences[len(sentences) // 2][:20]
    for _ in range(2):
        embedder.embed(sentences)
    seconds = _measure_seconds(lambda: embedder.embed(sentences))
    embedder.embed([sentence])
    sentence_seconds = min(_measure_seconds(lambda: embedder.embed([sentence])) for _ in range(20))
    if options.profile:
        _profile(options, lambda: embedder.embed(sentences[:2000]))
    shards, settings = Path(options.folder, "shards"), StoreSettings(precision=options.precision)
    place: dict[str, Any] = {"shards": shards, "model": folder / "model", "device": DEVICE.type}
    store_seconds = _measure_seconds(
        lambda: build(folder / f"store-{options.precision}", settings=settings, **place)
    )
    return {
        "tokens_per_second": round(sum(map(len, sentences)) / seconds),
        "tokens_per_second_to_a_store": round(Shards(shards).tokens() / store_seconds),
        "ms_of_one_sentence": round(1000 * sentence_seconds, 2),
    }


def _profile(options: argparse.Namespace, work: Callable[[], object]) -> None:
    with torch.profiler.profile() as profiler:
        tables = [f"{_measure_seconds(work):.3f} s"]
    averages = profiler.key_averages()
    for key in ("self_cuda_time_total", "self_cpu_time_total"):
        tables.append(averages.table(sort_by=key, row_limit=45, max_name_column_width=90))
    names = (options.work, options.network, options.precision, str(options.rows))
    options.profile.mkdir(exist_ok=True)
    file = options.profile / ("-".join(names) + ".txt")
    file.write_text("\n".join(tables), encoding="utf-8")


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def _measure_seconds(work: Callable[[], object]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


WORKS = {
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
