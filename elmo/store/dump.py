"""The export of a store as a Parquet table for other tools.

Shapes: T tokens of a sentence, D width of a layer.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elmo.data.arrays import Floats, split_into_runs
from elmo.io.atomic import new_file_if_absent
from elmo.store import FeatureStore
from elmo.store.dtypes import to_float16

_TOKENS_AT_A_TIME = 4096


def export_token_table(
    store: FeatureStore, out: Path, *, dtype: Literal["float32", "float16"] = "float32"
) -> int:
    """Export a store as a Parquet table that any tool can read, with one row per token and a list
    of numbers per layer; return the number of rows.

    The file is several times as large as the store, and slower to read.
    """
    number_type = pa.float16() if dtype == "float16" else pa.float32()
    layer_fields = [pa.field(name, pa.list_(number_type, store.dim)) for name in store.layers]
    fields = [
        pa.field("sentence_id", pa.int64()),
        pa.field("document_id", pa.int64()),
        pa.field("position", pa.int32()),
        pa.field("token", pa.string()),
    ]
    schema = pa.schema([*fields, *layer_fields])
    token_count = 0
    with new_file_if_absent(out) as path, pq.ParquetWriter(path, schema) as writer:
        for part in map(store.part, store.part_numbers()):
            for start, stop in split_into_runs(part.offsets, _TOKENS_AT_A_TIME):
                block = part.block(start, stop, store.layers)
                lengths = np.diff(block.offsets)
                starts = np.repeat(block.offsets[:-1], lengths)
                columns = [
                    pa.array(np.repeat(block.sentence_ids, lengths)),
                    pa.array(np.repeat(part.document_ids[start:stop], lengths)),
                    pa.array((np.arange(len(block.type_ids)) - starts).astype(np.int32)),
                    part.types.tokens.take(pa.array(block.type_ids)),
                    *(_list_array(vectors, dtype) for vectors in block.vectors),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
                token_count += len(block.type_ids)
    return token_count


def _list_array(vectors_TD: Floats, dtype: str) -> pa.Array:
    dim = vectors_TD.shape[1]
    numbers_TD = to_float16(vectors_TD) if dtype == "float16" else np.ascontiguousarray(vectors_TD)
    values = pa.array(numbers_TD.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, dim)
