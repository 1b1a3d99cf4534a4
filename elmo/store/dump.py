"""Exports of a store for other tools: a Parquet table, and HDF5 files as of 2018.

A sentence without tokens is exported if it was a blank line of the input, since line numbers matter
there, and left out if a tokenizer split the sentences. `elmo.interop.dump_formats` lists the
layouts.

Shapes: T tokens of a sentence, D width of a layer.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.interop.hdf5 import create_hdf5, load_h5py
from elmo.io.atomic import new_file_if_absent
from elmo.store import FeatureStore
from elmo.store.dtypes import narrow
from elmo.store.layout import layer_names

HDF5_LAYOUTS = ("bilm-tf", "all", "top", "average")
_ROWS = 4096


def export_token_table(
    store: FeatureStore, out: Path, *, dtype: Literal["float32", "float16"] = "float32"
) -> int:
    """Export a store as a Parquet table that any tool reads: a row per token, with a list of
    numbers for each layer; return the number of rows.

    The file is several times larger than the store, and slower to read.
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
    token_count = 0
    with new_file_if_absent(out) as path, pq.ParquetWriter(path, schema) as writer:
        for part in map(store.part, store.numbers()):
            for group in range(part.row_groups):
                block, rows = part.block(group, store.layers), slice(*part.block_rows(group))
                lengths = np.diff(block.offsets)
                starts = np.repeat(block.offsets[:-1], lengths)
                columns = [
                    pa.array(np.repeat(block.sentence_ids, lengths)),
                    pa.array(np.repeat(part.document_ids[rows], lengths)),
                    pa.array((np.arange(len(block.type_ids)) - starts).astype(np.int32)),
                    part.types.tokens.take(pa.array(block.type_ids)),
                    *(_lists(vectors, dtype) for vectors in block.vectors),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema), _ROWS)
                token_count += len(block.type_ids)
    return token_count


def export_hdf5(store: FeatureStore, out: Path, *, layout: str = "all") -> int:
    """Export a store to an HDF5 file as the ELMo tools of 2018 wrote; return the number of
    sentences.

    `layout` is `all` (layers), `top` (the last one), `average`, or `bilm-tf` (all layers, without
    an index of sentences). The store must hold all layers, for `top` the last one; for `average` a
    store of the average suffices.
    """
    layers = layer_names(store.layout.model_layers)
    layer_selection = layers[-1:] if layout == "top" else layers
    if layout == "average" and "average" in store.layers:
        layer_selection = ["average"]
    lines = store.lines(np.arange(len(store)))

    def sentences() -> Iterator[tuple[list[str], Floats]]:
        for k in range(len(store)):
            tokens = store.tokens(k)
            if tokens or lines[k]:
                yield tokens, store.vectors(k, layers=layer_selection)

    return write_vectors_hdf5(out, sentences(), layout=layout)


def write_vectors_hdf5(
    out: Path, sentences: Iterable[tuple[Sequence[str], Floats]], *, layout: str = "all"
) -> int:
    """Write sentences, given as tokens and vectors (layers, tokens, dim), to a new HDF5 file of the
    form that the ELMo tools of 2018 wrote; return their number.

    There is one dataset per sentence, named by its number from 0: of `all` layers, only the `top`
    one, their `average`, or `bilm-tf`, all layers without an index. The index, `sentence_to_index`,
    is a JSON object from a sentence's text to its number, the last one of equal sentences, as
    `allennlp elmo` wrote it. A sentence without tokens has an empty dataset.
    """
    if layout not in HDF5_LAYOUTS:
        raise ElmoError(f"layout must be one of {', '.join(HDF5_LAYOUTS)}, found {layout!r}")
    h5py = load_h5py()
    numbers: dict[str, str] = {}
    count = 0
    with create_hdf5(out) as (file, check):
        for tokens, vectors in sentences:
            kept = {"top": lambda v: v[-1], "average": lambda v: v.mean(0)}.get(layout)
            file.create_dataset(
                str(count), data=np.asarray(kept(vectors) if kept else vectors, "<f4")
            )
            check()
            numbers[" ".join(tokens)] = str(count)
            count += 1
        if layout != "bilm-tf":
            index = file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())
            index[0] = json.dumps(numbers)
    return count


def _lists(vectors_TD: Floats, dtype: str) -> pa.Array:
    dim = vectors_TD.shape[1]
    numbers_TD = narrow(vectors_TD) if dtype == "float16" else np.ascontiguousarray(vectors_TD)
    flat = pa.array(numbers_TD.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, dim)
