"""Measure how fast training and embedding are on a GPU.

    python -m benchmarks.gpu TEXT [--words 793471] [--rows 128 1024] [--steps 25]
        [--networks original small default] [--sentences 8000] [--profile FOLDER]
        [--seconds 570] [--project FOLDER --pieces FOLDER]

TEXT has one sentence per line, tokens between spaces. Without a CUDA device it runs on the CPU,
which only tests the command. The networks and the
recipe are those of `benchmarks.training`, in float32 (exact: no TF32) and bfloat16, with the words
of the model of 2018; windows are prepared by a process, as in training, and each step's
figures are read one step late. Each measurement is a process of its own, after a matrix product has
shown the GPU's peak; the most telling ones come first, and each result is a line on standard error
at once. No measurement begins after `--seconds`, and if one fails the others still run. Prints
JSON: tokens a second, their share of that peak (products counted by
shape), the time of a step, memory; the same without CUDA graphs; whether two trainings end in the
same bytes. With `--profile`, the kernels of a step and of embedding go to files in FOLDER.

With `--project`, a project in which `elmo run vocab` has ended, the time that is left trains the
network of its params.yaml in bfloat16. The checkpoint goes to `--pieces`, in files of 15 MiB; if
files of an earlier run are there, training goes on from them. To save space the weights are
rounded to float16 and AdamW's means start from zero. Once training has ended, the same command
writes the model to FOLDER/model; with `--networks` and no name, it does so without measurements.

For a machine that is lent for ten minutes and returns 64 MiB of what lies in $OUT, send a checkout
without `pretrained/` but with `english/`: params.yaml, data/shards, data/vocab and, the second
time, the pieces that came back. Beside torch it needs msgspec, fsspec, pyarrow, safetensors, h5py
and PyYAML. Run there:

    cp -r english/pieces/. $OUT; python3 -m benchmarks.gpu text.txt --networks original small \\
        --seconds 540 --project english --pieces $OUT > $OUT/figures.json
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import yaml

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
from elmo.data.characters import Characters
from elmo.data.shards import Shards
from elmo.data.vocabulary import Vocabulary
from elmo.io.location import Location
from elmo.model.embedder import Embedder
from elmo.model.folder import save_model
from elmo.nn import cuda_graphs
from elmo.nn.bilm import BiLM
from elmo.nn.device import default_device, exact_float32
from elmo.nn.softmax import new_softmax
from elmo.settings import (
    PRECISIONS,
    CheckpointSettings,
    ModelShape,
    StoreSettings,
    TrainingSettings,
)
from elmo.store.build import build
from elmo.train.checkpoints import Checkpoint, CheckpointFolder
from elmo.train.job import TrainingJob
from elmo.train.loop import fit
from elmo.train.step import Stepper, WorkerGroup

DEVICE = torch.device(default_device())
WARM = 6  # steps before those that are timed: they compile, and capture graphs
WINDOW = 20
EMBEDDED = ("small", "original", "tiny")
PIECE = 15 << 20  # bytes of a file that comes back from a lent machine
SAVING = 20  # seconds for writing the checkpoint
NEVER = 1 << 30  # steps between measurements of held-out text: one at the end is enough


def main() -> None:
    """Measure each work in a process of its own and print the figures."""
    options = _options()
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
        options.left = end - time.monotonic()
        if options.left < 0:
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
    if options.project:
        yield "model", "", "bfloat16", 0, True


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
    for name in ("words", "steps", "sentences", "profile", "project", "pieces", "left"):
        if value := getattr(options, name):
            words += [f"--{name}", str(value)]
    command = [sys.executable, "-m", "benchmarks.gpu", str(options.text), *words]
    environment = os.environ | {"ELMO_CUDA_GRAPHS": "1" if graphs else "0"}
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if child.returncode:
        return {"exit_code": child.returncode}
    figures: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return figures


def _peak(options: argparse.Namespace) -> dict[str, Any]:
    """Of a product of 8192 × 8192 × 8192, or of 256 × 256 × 256 on a CPU."""
    size = 8192 if DEVICE.type == "cuda" else 256
    precision = getattr(torch, options.precision)
    a, b = (torch.randn(size, size, device=DEVICE, dtype=precision) for _ in "ab")
    with exact_float32(DEVICE):
        seconds = sorted(_seconds(lambda: torch.mm(a, b)) for _ in range(9))
    return {"tflops": round(2 * size**3 / seconds[4] / 1e12, 1)}


def _training(options: argparse.Namespace) -> dict[str, Any]:
    stepper = _stepper(options)
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
        stepper = _stepper(options)
        _time_steps(options, stepper)
        ends.append([*stepper.bilm.parameters(), *stepper.softmax.parameters()])
    pairs = zip(*ends, strict=True)
    return {"equal": all(torch.equal(a, b) for a, b in pairs)}


def _stepper(options: argparse.Namespace) -> Stepper:
    recipe = recipe_2018(options.precision, rows=options.rows, window=WINDOW)
    return stepper_of(NETWORKS[options.network], recipe, options.words, WorkerGroup(device=DEVICE))


def _read_windows(options: argparse.Namespace, stepper: Stepper) -> Generator[Any, None, None]:
    folder, rows = Path(options.folder, "shards"), options.rows
    stream = stream_of(folder, options.text, WorkerGroup(), rows=rows, window=WINDOW)
    return stepper.read(stream, stream.first_position(), step=0)


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


def _embedding(options: argparse.Namespace) -> dict[str, Any]:
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
    seconds = _seconds(lambda: embedder.embed(sentences))
    embedder.embed([sentence])
    sentence_seconds = min(_seconds(lambda: embedder.embed([sentence])) for _ in range(20))
    if options.profile:
        _profile(options, lambda: embedder.embed(sentences[:2000]))
    shards, settings = Path(options.folder, "shards"), StoreSettings(precision=options.precision)
    place = {"shards": shards, "model": folder / "model", "device": DEVICE.type}
    store_seconds = _seconds(
        lambda: build(folder / f"store-{options.precision}", settings=settings, **place)
    )
    return {
        "tokens_per_second": round(sum(map(len, sentences)) / seconds),
        "tokens_per_second_to_a_store": round(Shards(shards).tokens() / store_seconds),
        "ms_of_one_sentence": round(1000 * sentence_seconds, 2),
    }


def _model(options: argparse.Namespace) -> dict[str, Any]:
    """Train the project's model for the time that is left, or to its end."""
    job = _job(options)
    checkpoints = CheckpointFolder(job.folder / "checkpoints", keep=1)
    pieces = sorted(options.pieces.glob("piece-*"))
    if pieces and not checkpoints.steps():
        archive_bytes = io.BytesIO(b"".join(piece.read_bytes() for piece in pieces))
        with zipfile.ZipFile(archive_bytes) as archive:
            archive.extractall(job.folder.local or "")
    figures: dict[str, Any] = {}
    with suppress(KeyboardInterrupt):
        fit(job, workers=WorkerGroup(device=DEVICE), report=lambda _, row: figures.update(row))
    checkpoint = checkpoints.load(checkpoints.steps()[-1])
    if checkpoint.progress.finished:
        save_model(
            options.project / "model",
            bilm=job.bilm,
            vocabulary=job.vocabulary,
            characters=job.characters,
            softmax={name: tensor.detach() for name, tensor in job.softmax.state_dict().items()},
            training={"perplexity": checkpoint.progress.figures},
            tokenizer=job.shards.tokenization,
        )
    _write_pieces(checkpoint, options.pieces)
    return figures | {"step": checkpoint.progress.step, "finished": checkpoint.progress.finished}


class _Deadline:
    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def exists(self) -> bool:
        """Tell whether the time has come to stop and save."""
        return time.monotonic() > self.end


def _job(options: argparse.Namespace) -> TrainingJob:
    project: Path = options.project
    params = yaml.safe_load((project / "params.yaml").read_text(encoding="utf-8"))["pretrain"]
    changes = {"precision": options.precision, "evaluate_every": NEVER}
    settings = msgspec.convert(params["training"] | changes, TrainingSettings)
    shape = msgspec.convert(params["network"] | {"input_words": None}, ModelShape)
    shards, vocab = Shards(project / "data/shards/general"), project / "data/vocab"
    vocabulary, characters = Vocabulary.load(vocab), Characters.load(vocab / "characters.json")
    bilm = BiLM(shape, characters=characters.size)
    bilm.reset_parameters(settings.seed)
    return TrainingJob(
        bilm=bilm,
        softmax=new_softmax(len(vocabulary), shape.projection, seed=settings.seed + 1),
        vocabulary=vocabulary,
        characters=characters,
        shards=shards,
        settings=settings.with_chosen_rows(shards.tokens("train")),
        folder=Location(project / "job"),
        lr_of={},
        checkpointing=CheckpointSettings(minutes=60, keep=1),
        stop=_Deadline(options.left - SAVING),
    )


def _write_pieces(checkpoint: Checkpoint, pieces: Path) -> None:
    tensors = {name: _narrow(name, tensor) for name, tensor in checkpoint.tensors.items()}
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        replace(checkpoint, tensors=tensors).save(Location(folder) / "checkpoint")
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in Path(folder, "checkpoint").iterdir():
                name = f"checkpoints/step-{checkpoint.progress.step:09d}/{file.name}"
                archive.write(file, name)
    pieces.mkdir(parents=True, exist_ok=True)
    for piece in pieces.glob("piece-*"):
        piece.unlink()
    for number, start in enumerate(range(0, len(archive_bytes := data.getvalue()), PIECE)):
        (pieces / f"piece-{number}").write_bytes(archive_bytes[start : start + PIECE])


def _narrow(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if name.endswith(".taken"):
        return tensor
    if name.startswith("optimizer."):
        return (tensor * (not name.endswith(".mean"))).bfloat16()
    return tensor.half()


def _profile(options: argparse.Namespace, work: Callable[[], object]) -> None:
    with torch.profiler.profile() as profiler:
        tables = [f"{_seconds(work):.3f} s"]
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


def _seconds(work: Callable[[], object]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


WORKS = {
    "peak": _peak,
    "training": _training,
    "twice": _compare_two_trainings,
    "embedding": _embedding,
    "model": _model,
}


def _options() -> argparse.Namespace:
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
    parser.add_argument("--project", type=Path)
    parser.add_argument("--pieces", type=Path)
    parser.add_argument("--left", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--side", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
