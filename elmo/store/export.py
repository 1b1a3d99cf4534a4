"""Exports of a store for other tools: 2018 HDF5 files, Parquet lists, Hugging Face datasets.

A sentence without tokens is exported if it was a blank line of the input, since line numbers matter
there, and left out if a tokenizer split the sentences. `elmo.interop.exports` has a record of each
layout.

Shapes: T tokens of a sentence, D width of a layer.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.interop.vectors_hdf5 import write_dump
from elmo.io.atomic import new_output
from elmo.io.folders import new_folder
from elmo.io.location import Location
from elmo.store import FeatureStore
from elmo.store.layout import layer_names, narrow

if TYPE_CHECKING:
    import datasets

_ROWS = 4096


def export_lists(
    store: FeatureStore, out: Path, *, dtype: Literal["float32", "float16"] = "float32"
) -> int:
    """Write a Parquet file with one row per token and a list of numbers per layer; return its rows.

    Any Parquet tool can read it, but it is several times larger and slower than a store.
    """
    number = pa.float16() if dtype == "float16" else pa.float32()
    layers = [pa.field(name, pa.list_(number, store.dim)) for name in store.layers]
    fields = [
        pa.field("sentence_id", pa.int64()),
        pa.field("document_id", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("token", pa.string()),
    ]
    schema = pa.schema([*fields, *layers])
    written = 0
    with new_output(out) as path, pq.ParquetWriter(path, schema) as writer:
        for number in store.numbers():
            part = store.part(number)
            for group in range(part.row_groups):
                block = part.block(group, store.layers)
                first, last = part.block_rows(group)
                lengths = np.diff(block.offsets)
                starts = np.repeat(block.offsets[:-1], lengths)
                columns = [
                    pa.array(np.repeat(block.sentence_ids, lengths)),
                    pa.array(np.repeat(part.document_ids[first:last], lengths)),
                    pa.array((np.arange(len(block.type_ids)) - starts).astype(np.int32)),
                    part.types.tokens.take(pa.array(block.type_ids)),
                    *(_lists(vectors, dtype) for vectors in block.vectors),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), _ROWS)
                written += len(block.type_ids)
    return written


def export_hdf5(store: FeatureStore, out: Path, *, layout: str = "all") -> int:
    """Write an HDF5 file as described in `elmo.interop.vectors_hdf5`; return the number of
    sentences.

    The layouts `bilm-tf`, `all` and `average` need all layers in the store (`average` also accepts
    a store of that alone); `top` needs the last layer.
    """
    layers = layer_names(store.layout.model_layers)
    wanted = layers[-1:] if layout == "top" else layers
    if layout == "average" and "average" in store.layers:
        wanted = ["average"]
    lines = store.lines(np.arange(len(store)))

    def sentences() -> Iterator[tuple[list[str], Floats]]:
        for k in range(len(store)):
            tokens = store.tokens(k)
            if tokens or lines[k]:
                yield tokens, store.vectors(k, layers=wanted)

    return write_dump(out, sentences(), layout=layout)


def rows(store: FeatureStore, *, numbers: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield each sentence as a dictionary: `sentence_id`, `tokens`, and float32 (T, dim) per layer.

    `numbers` selects parts of the store by their index (default: all).
    """
    for number in store.numbers() if numbers is None else numbers:
        part = store.part(number)
        for group in range(part.row_groups):
            block = part.block(group, store.layers)
            first, _ = part.block_rows(group)
            lines = store.lines(block.sentence_ids)
            for row, k in enumerate(block.sentence_ids):
                start, stop = block.offsets[row], block.offsets[row + 1]
                if start == stop and not lines[row]:
                    continue
                vectors = {
                    name: block.vectors[layer, start:stop]
                    for layer, name in enumerate(store.layers)
                }
                yield {"sentence_id": int(k), "tokens": part.tokens(first + row), **vectors}


def to_datasets(store: FeatureStore, *, cache_dir: Path | None = None) -> "datasets.Dataset":
    """Return the store as a Hugging Face dataset: one row per sentence, float32 (T, dim) per
    layer."""
    try:
        import datasets
    except ImportError:
        raise ElmoError(
            "Hugging Face datasets are not installed; run: pip install datasets"
        ) from None
    features = {
        "sentence_id": datasets.Value("int64"),
        "tokens": datasets.List(datasets.Value("string")),
    }
    for name in store.layers:
        features[name] = datasets.Array2D((None, store.dim), "float32")
    return datasets.Dataset.from_generator(
        rows,
        features=datasets.Features(features),
        gen_kwargs={"store": store},
        cache_dir=None if cache_dir is None else str(cache_dir),
    )


def export_datasets(store: FeatureStore, out: Path) -> int:
    """Write a folder for `datasets.load_from_disk`; return the number of sentences."""
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    with new_folder(Location(out), ours=("dataset_info.json", "state.json")) as folder:
        with TemporaryDirectory(dir=folder) as cache:
            dataset = to_datasets(store, cache_dir=Path(cache))
            dataset.save_to_disk(str(folder))
            return len(dataset)


def _lists(vectors_TD: Floats, dtype: str) -> pa.Array:
    dim = vectors_TD.shape[1]
    numbers_TD = narrow(vectors_TD) if dtype == "float16" else np.ascontiguousarray(vectors_TD)
    flat = pa.array(numbers_TD.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, dim)
