"""A store against HDF5 as in 2018, numpy memmap, list columns, Hugging Face datasets and Lance.

    python -m benchmarks.features TEXT [--tokens 100000] [--dim 1024] [--layers 3] [--repeat 5]

TEXT has one sentence per line, tokens between spaces. The vectors are random (the same for all
sides, layer 0 once for each distinct token): sizes and times of reading do not depend on them.
Every side is written, then each is read `--repeat` times in turn; prints the medians as JSON:
bytes per token, seconds to write, a scan of everything into float32 arrays, and one sentence at
random, all layers, as a float32 array. What is not installed (h5py, datasets, lance) is left out.
"""

import argparse
import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from benchmarks.machine import show
from elmo.data.manifest import TokenizerEntry
from elmo.data.shards import Shard, Shards, write_shards
from elmo.data.tokenizer import Tokenization
from elmo.io.location import Location
from elmo.store import FeatureStore
from elmo.store.dump import export_token_table
from elmo.store.layout import Layout, choose_layers
from elmo.store.manifest import (
    FIRST_MANIFEST,
    ModelEntry,
    ParamsEntry,
    PartEntry,
    StoreSource,
    count_parts,
    new_manifest,
    publish,
)
from elmo.store.writer import Origin, Rows, write_part

SEGMENT = 4096


def main() -> None:
    """Write and read with each side; print what was measured."""
    options = _options()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        text = Text(_lines(options.text, options.tokens), options.layers, options.dim)
        sides = _sides(text, Path(folder))
        report = {name: _write(side) for name, side in sides.items()}
        chosen = np.random.default_rng(0).integers(0, len(text.sentences), options.sentences)
        for _ in range(options.repeat):
            for name, side in sides.items():
                _read(side, chosen, text.tokens, report[name])
        for figures in report.values():
            for key in ("scan_s", "random_us"):
                figures[key] = round(median(figures[key]), 4)
            figures["bytes_per_token"] = round(figures["bytes"] / text.tokens, 1)
        opening = _opening(Path(folder))
    show(
        {
            "tokens": text.tokens,
            "sentences": len(text.sentences),
            "distinct": len(text.x_NP),
            "layers": options.layers,
            "dim": options.dim,
            "sides": report,
            "against hdf5 float32": _ratios(report),
            "opening 1000 parts, s": opening,
        }
    )


@dataclass
class Text:
    """Real sentences with random vectors: `x_NP` of distinct tokens, the other layers by seed."""

    sentences: list[list[str]]
    layers: int
    dim: int

    @cached_property
    def shard(self) -> Shard:
        """The sentences as one shard."""
        with tempfile.TemporaryDirectory() as folder:
            many = len(self.sentences)
            shards = write_shards(Path(folder) / "s", self.sentences, shard_sentences=many)
            return _in_memory(shards)

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self.shard.offsets[-1])

    @cached_property
    def x_NP(self) -> npt.NDArray[np.float32]:
        """Layer 0 of the distinct tokens, half of it."""
        return _random(0, (len(self.shard.types), self.dim // 2))

    def segments(self) -> Iterator["Segment"]:
        """All sentences, a few thousand tokens at a time."""
        offsets, start = self.shard.offsets, 0
        while start < len(self.sentences):
            stop = int(np.searchsorted(offsets, offsets[start] + SEGMENT, side="right")) - 1
            stop = max(stop, start + 1)
            shape = (int(offsets[stop] - offsets[start]), self.dim)
            layers = [_random(start * 10 + layer, shape) for layer in range(1, self.layers)]
            yield Segment(start, stop, layers)
            start = stop

    def vectors(self) -> Iterator[npt.NDArray[np.float32]]:
        """Each sentence as float32 (layers, T, dim)."""
        offsets = self.shard.offsets
        for segment in self.segments():
            for k in range(segment.start, segment.stop):
                start, stop = offsets[k] - offsets[segment.start], offsets[k + 1]
                x_TP = self.x_NP[self.shard.ids[offsets[k] : stop]]
                tokens = slice(start, stop - offsets[segment.start])
                layers = [np.concatenate([x_TP, x_TP], 1), *(y[tokens] for y in segment.contextual)]
                yield np.stack(layers)


@dataclass(frozen=True)
class Segment:
    """Sentences `start` to `stop` with their layers."""

    start: int
    stop: int
    contextual: list[npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Side:
    """One way to keep vectors: write them to `path`, scan them, read one sentence."""

    path: Path
    write: Callable[[Path], Any]
    open: Callable[[Path], Any]
    scan: Callable[[Any], int]
    one: Callable[[Any, int], npt.NDArray[np.float32]]


def _sides(text: Text, folder: Path) -> dict[str, Side]:
    def store(**changed: Any) -> Side:
        layout = Layout(
            choose_layers("all", model_layers=text.layers),
            text.dim,
            text.layers,
            dtype="float16",
            codec="none",
            row_group_tokens=2048,
        )
        name = "-".join(["store", *map(str, changed.values())])
        return Side(
            folder / name,
            lambda path: _write_store(path, text, structs.replace(layout, **changed)),
            FeatureStore,
            lambda opened: sum(block.vectors.shape[1] for block in opened.blocks()),
            lambda opened, k: opened[k],
        )

    sides = {
        "store float16": store(),
        "store float16 zstd": store(codec="zstd"),
        "store float32": store(dtype="float32"),
        "store int8": store(dtype="int8"),
        "numpy memmap float16": _memmap(text, folder / "memmap"),
        "parquet list columns float32": _lists(folder / "lists.parquet", folder / "store"),
    }
    if find_spec("h5py"):
        sides["hdf5 float32"] = _hdf5(text, folder / "f4.hdf5", "<f4")
        sides["hdf5 float16"] = _hdf5(text, folder / "f2.hdf5", "<f2")
    if find_spec("datasets"):
        sides["datasets float32"] = _datasets(text, folder / "datasets")
    if find_spec("lance"):
        sides["lance float16"] = _lance(text, folder / "lance")
    return sides


def _write_store(path: Path, text: Text, layout: Layout) -> None:
    shard = text.shard
    location = Location(path)
    part = write_part(
        location,
        0,
        rows=Rows(
            shard.sentence_ids, shard.document_ids, shard.offsets, shard.ids, shard.dictionary
        ),
        x_NP=text.x_NP,
        segments=text.segments(),
        layout=layout,
        origin=Origin("train", "benchmark", (), {}),
    )
    _publish(location, layout, [part])


def _publish(location: Location, layout: Layout, parts: list[PartEntry]) -> None:
    counts = count_parts(parts)
    source = StoreSource(
        digest="0" * 64,
        tokenizer=TokenizerEntry("whitespace"),
        inputs=[],
        first_sentence_id=0,
        first_document_id=0,
        sentences=counts.sentences,
        documents=counts.sentences,
        tokens=counts.tokens,
        device="cpu",
    )
    manifest = new_manifest(
        layout=layout,
        model=ModelEntry("0" * 64, Tokenization("none"), {}),
        params=ParamsEntry(layers="all", precision="float32"),
        sources=[source],
        parts=parts,
        made_by="benchmark",
    )
    publish(location, manifest)


def _hdf5(text: Text, path: Path, dtype: str) -> Side:
    import h5py

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            for k, vectors in enumerate(text.vectors()):
                file.create_dataset(str(k), data=vectors.astype(dtype))

    def one(file: Any, k: int) -> npt.NDArray[np.float32]:
        return np.asarray(file[str(k)][()], np.float32)

    def scan(file: Any) -> int:
        return sum(one(file, k).shape[1] for k in range(len(file)))

    return Side(path, write, lambda path: h5py.File(path, "r"), scan, one)


def _memmap(text: Text, path: Path) -> Side:
    offsets = text.shard.offsets
    shape = (text.tokens, text.layers, text.dim)

    def write(path: Path) -> None:
        mapped = np.memmap(path, "<f2", "w+", shape=shape)
        for k, vectors in enumerate(text.vectors()):
            mapped[offsets[k] : offsets[k + 1]] = vectors.transpose(1, 0, 2)
        mapped.flush()

    def one(store: Any, k: int) -> npt.NDArray[np.float32]:
        return np.asarray(store[offsets[k] : offsets[k + 1]].transpose(1, 0, 2), np.float32)

    def scan(store: Any) -> int:
        starts = range(0, len(store), SEGMENT)
        return sum(
            np.asarray(store[start : start + SEGMENT], np.float32).shape[0] for start in starts
        )

    return Side(path, write, lambda path: np.memmap(path, "<f2", "r", shape=shape), scan, one)


def _lists(path: Path, store: Path) -> Side:
    """One row per token, as `export_token_table` writes it; a sentence is found by a filter."""
    import pyarrow.dataset as ds

    def scan(opened: Any) -> int:
        names = [name for name in opened.schema.names if name.startswith("layer_")]
        tokens = 0
        for batch in opened.to_batches(columns=names):
            for name in names:
                batch[name].flatten().to_numpy()
            tokens += len(batch)
        return tokens

    def one(opened: Any, k: int) -> npt.NDArray[np.float32]:
        names = [name for name in opened.schema.names if name.startswith("layer_")]
        table = opened.to_table(columns=names, filter=ds.field("sentence_id") == k)
        flat = [table[name].combine_chunks().flatten().to_numpy() for name in names]
        return np.stack(flat).reshape(len(names), len(table), -1)

    def write(path: Path) -> None:
        export_token_table(FeatureStore(store), path)

    return Side(path, write, ds.dataset, scan, one)


def _datasets(text: Text, path: Path) -> Side:
    import datasets

    datasets.disable_progress_bars()
    names = [f"layer_{layer}" for layer in range(text.layers)]

    def rows() -> Iterator[dict[str, Any]]:
        for vectors in text.vectors():
            yield dict(zip(names, vectors, strict=True))

    def write(path: Path) -> None:
        kind = datasets.Array2D((None, text.dim), "float32")
        features = datasets.Features({name: kind for name in names})
        cache = str(path) + "-cache"
        dataset = datasets.Dataset.from_generator(
            rows, features=features, cache_dir=cache, fingerprint=str(time.time_ns())
        )
        dataset.save_to_disk(str(path))
        shutil.rmtree(cache)

    def one(opened: Any, k: int) -> npt.NDArray[np.float32]:
        row = opened[int(k)]
        return np.stack([row[name] for name in names])

    def scan(opened: Any) -> int:
        return sum(one(opened, k).shape[1] for k in range(len(opened)))

    return Side(
        path, write, lambda path: datasets.load_from_disk(str(path)).with_format("numpy"), scan, one
    )


def _lance(text: Text, path: Path) -> Side:
    """One row per sentence with one binary value per layer, as a store has it."""
    import lance
    import pyarrow as pa

    names = [f"layer_{layer}" for layer in range(text.layers)]
    schema = pa.schema([pa.field(name, pa.large_binary()) for name in names])

    def batches() -> Iterator[pa.RecordBatch]:
        for vectors in text.vectors():
            values = [[layer.astype("<f2").tobytes()] for layer in vectors]
            arrays = [pa.array(value, pa.large_binary()) for value in values]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def decode(table: Any, row: int) -> npt.NDArray[np.float32]:
        flat = [np.frombuffer(table[name][row].as_buffer(), "<f2") for name in names]
        return np.stack(flat).reshape(len(names), -1, text.dim).astype(np.float32)

    def scan(opened: Any) -> int:
        tokens = 0
        for batch in opened.to_batches():
            tokens += sum(decode(batch, row).shape[1] for row in range(len(batch)))
        return tokens

    return Side(
        path,
        lambda path: lance.write_dataset(batches(), str(path), schema=schema),
        lambda path: lance.dataset(str(path)),
        scan,
        lambda opened, k: decode(opened.take([int(k)]), 0),
    )


def _write(side: Side) -> dict[str, Any]:
    began = time.perf_counter()
    side.write(side.path)
    seconds = time.perf_counter() - began
    files = [side.path] if side.path.is_file() else side.path.rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    return {"write_s": round(seconds, 3), "bytes": size, "scan_s": [], "random_us": []}


def _read(side: Side, chosen: npt.NDArray[np.int64], tokens: int, figures: dict[str, Any]) -> None:
    opened = side.open(side.path)
    gc.collect()
    began = time.perf_counter()
    seen = side.scan(opened)
    figures["scan_s"].append(time.perf_counter() - began)
    assert seen == tokens, f"{side.path.name}: {seen} tokens of {tokens}"
    began = time.perf_counter()
    for k in chosen:
        side.one(opened, int(k))
    figures["random_us"].append((time.perf_counter() - began) / len(chosen) * 1e6)


def _opening(folder: Path) -> float:
    """Seconds to open a store of 1,000 parts and read a sentence of it."""
    store = folder / "store"
    manifest = FeatureStore(store).manifest
    (part,) = manifest.parts
    size = part.last_sentence_id + 1
    parts = [
        structs.replace(part, first_sentence_id=k * size, last_sentence_id=k * size + size - 1)
        for k in range(1000)
    ]
    Location(store).delete(FIRST_MANIFEST)
    _publish(Location(store), manifest.layout, parts)
    began = time.perf_counter()
    FeatureStore(store)[0]
    return round(time.perf_counter() - began, 4)


def _ratios(report: dict[str, Any]) -> dict[str, Any]:
    """How many times faster than HDF5 a store and the others are, and their share of its bytes."""
    if "hdf5 float32" not in report:
        return {}
    base = report["hdf5 float32"]
    return {
        name: {
            "scan": round(base["scan_s"] / figures["scan_s"], 2),
            "random sentence": round(base["random_us"] / figures["random_us"], 2),
            "bytes": round(figures["bytes"] / base["bytes"], 3),
        }
        for name, figures in report.items()
    }


def _in_memory(shards: Shards) -> Shard:
    shard = shards.open(shards.entries()[0])
    return replace(
        shard,
        sentence_ids=shard.sentence_ids.copy(),
        document_ids=shard.document_ids.copy(),
        offsets=shard.offsets.copy(),
        ids=shard.ids.copy(),
    )


def _random(seed: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.4)


def _lines(path: Path, tokens: int) -> list[list[str]]:
    sentences: list[list[str]] = []
    total = 0
    with path.open(encoding="utf-8") as file:
        for line in file:
            if total >= tokens:
                break
            if sentence := line.split():
                sentences.append(sentence)
                total += len(sentence)
    return sentences


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=500, help="read at random")
    parser.add_argument("--folder", type=Path, help="where to write; default: the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
