"""Compare a store with the HDF5 format of 2018, which has one dataset per sentence.

    python -m benchmarks.features TEXT [--size original] [--tokens 100000] [--repeat 5]

TEXT has one sentence per line, with tokens separated by spaces. The network is that of 2018 with
random weights, because sizes and reading times do not depend on them. Each side is written once and
read `--repeat` times, in turn. Prints JSON, for vectors of all layers: bytes per token, the median
seconds to read everything, and the median microseconds to read one random sentence. Requires
`pip install h5py`.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np

from benchmarks.embedding import SIZES, make_weights
from benchmarks.lm_text import read_lines, take_tokens
from benchmarks.machine import print_figures
from elmo.data.shards import write_shards
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build


@dataclass(frozen=True)
class Side:
    """A file format: its path, and functions that open it, count all tokens and read a sentence."""

    path: Path
    open: Callable[[Path], Any]
    scan: Callable[[Any], int]
    read_sentence: Callable[[Any, int], Any]


def main() -> None:
    """Write both sides, read them in turn and print the figures."""
    options = _parse_options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder_name:
        folder = Path(folder_name)
        make_weights(folder, options.size)
        sentences = take_tokens([line for line in read_lines(options.text) if line], options.tokens)
        write_shards(folder / "shards", sentences, shard_sentences=len(sentences))
        build(
            folder / "store",
            shards=folder / "shards",
            model=folder / "model",
            settings=StoreSettings(),
            work=folder / "work",
        )
        store = FeatureStore(folder / "store")
        with h5py.File(folder / "hdf5", "w") as file:
            for number in range(len(sentences)):
                file.create_dataset(str(number), data=store[number].astype("<f4"))
        tokens = sum(map(len, sentences))
        print_figures({"tokens": tokens} | _measure_sides(folder, tokens, len(sentences), options))


def _measure_sides(
    folder: Path, tokens: int, count: int, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    sides = {
        "store float16": Side(
            folder / "store",
            FeatureStore,
            lambda store: sum(block.vectors.shape[1] for block in store.blocks()),
            lambda store, k: store[k],
        ),
        "hdf5 float32": Side(
            folder / "hdf5",
            lambda path: h5py.File(path, "r"),
            lambda file: sum(file[str(k)][()].shape[1] for k in range(count)),
            lambda file, k: file[str(k)][()],
        ),
    }
    ids = [int(k) for k in np.random.default_rng(0).integers(0, count, options.sentences)]
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.repeat):
        for name, side in sides.items():
            reader = side.open(side.path)
            start_time = time.perf_counter()
            assert side.scan(reader) == tokens
            scan_end = time.perf_counter()
            for k in ids:
                side.read_sentence(reader, k)
            end_time = time.perf_counter()
            runs[name].append((scan_end - start_time, (end_time - scan_end) / len(ids) * 1e6))
    figures = {name: _summarize_runs(side.path, tokens, runs[name]) for name, side in sides.items()}
    our_figures, hdf5_figures = figures.values()
    ratios = {
        "scan": round(hdf5_figures["scan_s"] / our_figures["scan_s"], 2),
        "random sentence": round(hdf5_figures["random_us"] / our_figures["random_us"], 2),
        "bytes": round(our_figures["bytes"] / hdf5_figures["bytes"], 3),
    }
    return {"sides": figures, "against hdf5 float32": {"store float16": ratios}}


def _summarize_runs(path: Path, tokens: int, runs: list[tuple[float, float]]) -> dict[str, float]:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return {
        "bytes": size,
        "bytes_per_token": round(size / tokens, 1),
        "scan_s": round(median(seconds for seconds, _ in runs), 4),
        "random_us": round(median(microseconds for _, microseconds in runs), 1),
    }


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=500, help="random sentences to read")
    parser.add_argument("--folder", type=Path, help="where to make a temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
