"""Stores for other tools: HDF5 as in 2018, list columns, Hugging Face datasets.

Shapes: T tokens of a sentence.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.dumps import write_dump
from elmo.errors import ElmoError
from elmo.features import FeatureStore
from elmo.files import new_file

if TYPE_CHECKING:
    import datasets

_ROWS = 4096


def export_lists(store: FeatureStore, out: Path) -> int:
    """Write a Parquet file with a row a token and a list of float32 a layer; return its rows.

    Any tool reads it without knowing of stores, at several times the bytes and seconds.
    """
    layers = [pa.field(name, pa.list_(pa.float32(), store.dim)) for name in store.layers]
    fields = [
        pa.field("sentence_id", pa.int64()),
        pa.field("document_id", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("token", pa.string()),
    ]
    schema = pa.schema([*fields, *layers])
    rows = 0
    with new_file(out) as path, pq.ParquetWriter(path, schema) as writer:
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
                    pa.array((np.arange(len(block.types)) - starts).astype(np.int32)),
                    part.types.tokens.take(pa.array(block.types)),
                    *(_lists(vectors) for vectors in block.vectors),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), _ROWS)
                rows += len(block.types)
    return rows


def export_hdf5(store: FeatureStore, out: Path, *, layout: str = "all") -> int:
    """Write the HDF5 file that `elmo.dumps` describes; return its sentences.

    `bilm-tf`, `all` and `average` need every layer in the store, or `average` that alone; `top`
    the last.
    """
    layers = [f"layer_{layer}" for layer in range(store.layout.model_layers)]
    wanted = layers[-1:] if layout == "top" else layers
    if layout == "average" and "average" in store.layers:
        wanted = ["average"]
    sentences = ((store.tokens(k), store.vectors(k, layers=wanted)) for k in range(len(store)))
    return write_dump(out, sentences, layout=layout)


def rows(store: FeatureStore, *, numbers: Sequence[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield each sentence as a dictionary: its number, tokens, and float32 (T, dim) a layer.

    `numbers` chooses some parts.
    """
    for number in store.numbers() if numbers is None else numbers:
        part = store.part(number)
        for group in range(part.row_groups):
            block = part.block(group, store.layers)
            first, _ = part.block_rows(group)
            for place, k in enumerate(block.sentence_ids):
                start, stop = block.offsets[place], block.offsets[place + 1]
                vectors = {
                    name: block.vectors[layer, start:stop]
                    for layer, name in enumerate(store.layers)
                }
                yield {"sentence_id": int(k), "tokens": part.tokens(first + place), **vectors}


def to_datasets(store: FeatureStore, *, cache_dir: Path | None = None) -> "datasets.Dataset":
    """The store as a Hugging Face dataset: a row a sentence, a layer a float32 array (T, dim)."""
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


def _lists(vectors_TD: np.typing.NDArray[np.float32]) -> pa.Array:
    dim = vectors_TD.shape[1]
    flat = pa.array(np.ascontiguousarray(vectors_TD).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, dim)
