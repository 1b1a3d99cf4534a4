"""The layout of a store's files: which layers they hold, in which dtype, and their Parquet schemas.

A part, `part-00000-<digest>.parquet`, has one row per sentence. Each layer has one binary value per
sentence, with the vectors of its tokens end to end, because Parquet readers take ten times as long
for lists of floats. Layer 0 does not depend on context, so it is stored once per distinct token of
the part, in `__elmo/types-<digest>.types`; the part's column `types` has each token's row there.
Layer 0 is [x; x], so only x is stored. The tables of types are Parquet too; their folder and
extension hide them from tools that read all `*.parquet` files of a folder. All such tools skip
names that begin with two underscores.

Shapes: N distinct tokens, T tokens, P projection, D = 2P.
"""

import json
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from msgspec import Meta, Struct

from elmo.errors import ElmoError
from elmo.settings import MAX_LAYERS, Codec, Dtype
from elmo.store.dtypes import DTYPES

STORE_SCHEMA_VERSION = 4
TYPE_ID_DTYPE = "<i4"  # the type of a row number in the table of distinct tokens
MAX_STORED_LAYERS = MAX_LAYERS + 1  # with layer 0, the output of the char-CNN
MAX_DIM = 2**20
MAX_VALUE_BYTES = 2**31 - 2**20  # because Arrow's offsets have 32 bits


class Layout(Struct, frozen=True, forbid_unknown_fields=True):
    """The form in which a store keeps its vectors, the same in all parts.

    `layers` are the names of the stored columns, in order: any of `layer_0` to `layer_L`. `dim` is
    the width of a vector; `model_layers` is the number of the model's layers, layer 0 included. A
    row group holds about `row_group_tokens` tokens.
    """

    layers: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_STORED_LAYERS)]
    dim: Annotated[int, Meta(ge=2, le=MAX_DIM)]
    model_layers: Annotated[int, Meta(ge=1, le=MAX_STORED_LAYERS)]
    dtype: Dtype
    codec: Codec
    row_group_tokens: Annotated[int, Meta(ge=1, le=2**31)]
    mix: None = None  # its key is in the fingerprints of parts

    def __post_init__(self) -> None:
        names = layer_names(self.model_layers)
        if not set(self.layers) <= set(names) or len(set(self.layers)) < len(self.layers):
            raise ElmoError(
                f"layers must be distinct names from layer_0 to {names[-1]}, found "
                f"{', '.join(self.layers)[:100]}"
            )
        if self.dim % 2:
            raise ElmoError(f"dim must be even, found {self.dim}")

    @property
    def contextual_layers(self) -> tuple[str, ...]:
        """Return the layers that are stored in the part itself: all but layer 0."""
        return tuple(name for name in self.layers if name != "layer_0")

    @property
    def vector_bytes(self) -> int:
        """Return the size in bytes of one contextual vector."""
        return self.dim * np.dtype(DTYPES[self.dtype]).itemsize

    @property
    def x_bytes(self) -> int:
        """Return the size in bytes of x, the half of layer 0 that is stored."""
        return self.vector_bytes // 2


def layer_name(number: int) -> str:
    """Return the column name of a layer; layer 0 is the context-free one."""
    return f"layer_{number}"


def layer_number(name: str) -> int:
    """Return the layer number of a column name, such as 2 for `layer_2`."""
    return int(name.removeprefix("layer_"))


def layer_names(layers: int) -> list[str]:
    """Return the column names of a model with `layers` layers, including layer 0, in order."""
    return [layer_name(number) for number in range(layers)]


def choose_layers(choice: str, *, model_layers: int) -> tuple[str, ...]:
    """Return the column names of the layers that `choice` selects. The model has `model_layers`
    layers, including layer 0.

    `choice` is `all`, `top` or comma-separated layer numbers; anything else raises `ElmoError`.
    """
    names = layer_names(model_layers)
    if choice == "all":
        return tuple(names)
    if choice == "top":
        return (names[-1],)
    indices = []
    for text in choice.split(","):
        if not text.strip().isdecimal() or int(text) >= model_layers:
            raise ElmoError(
                f"layers must be all, top or comma-separated numbers from 0 to {model_layers - 1}, "
                f"found {choice!r}"
            )
        indices.append(int(text))
    if len(set(indices)) != len(indices):
        raise ElmoError(f"layers names a layer twice: {choice!r}")
    return tuple(names[layer] for layer in sorted(indices))


def part_schema(layout: Layout, *, types_file: str, metadata: dict[str, str]) -> pa.Schema:
    """Return the schema of a part; its metadata suffices to decode the file without this package.

    `types_file` is the path of the part's table of distinct tokens; `metadata` is added to the
    schema's own.
    """
    fields = [
        pa.field("sentence_id", pa.int64(), nullable=False),
        pa.field("document_id", pa.int64(), nullable=False),
        pa.field("length", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("element", pa.string(), False)), nullable=False),
        pa.field("types", pa.binary(), nullable=False),
    ]
    type_ids = {"dtype": TYPE_ID_DTYPE, "shape": ["length"], "of": types_file}
    columns: dict[str, Any] = {"types": type_ids}
    for name in layout.contextual_layers:
        fields.append(pa.field(name, pa.binary(), nullable=False))
        columns[name] = {"dtype": DTYPES[layout.dtype], "shape": ["length", layout.dim]}
    return pa.schema(fields, metadata=_file_metadata(layout, columns, "elmo.store.part", metadata))


def types_schema(layout: Layout, *, metadata: dict[str, str]) -> pa.Schema:
    """Return the schema of a part's table of distinct tokens; `metadata` is added to its own."""
    fields = [pa.field("token", pa.string(), nullable=False)]
    columns: dict[str, Any] = {}
    if "layer_0" in layout.layers:
        fields.append(pa.field("layer_0", pa.binary(layout.x_bytes), nullable=False))
        columns["layer_0"] = {
            "dtype": DTYPES[layout.dtype],
            "shape": [layout.dim // 2],
            "repeat": 2,
            "note": "layer 0 is this vector twice, end to end",
        }
    return pa.schema(fields, metadata=_file_metadata(layout, columns, "elmo.store.types", metadata))


def layout_metadata(layout: Layout) -> dict[str, str]:
    """Return the layout as in the metadata of every file of a store: text by key."""
    return {
        "dtype": DTYPES[layout.dtype],
        "dim": str(layout.dim),
        "layers": json.dumps(layout.layers),
    }


def _file_metadata(
    layout: Layout, columns: dict[str, Any], kind: str, metadata: dict[str, str]
) -> dict[str, str]:
    values = layout_metadata(layout)
    return {
        "elmo.kind": kind,
        "elmo.schema": str(STORE_SCHEMA_VERSION),
        "elmo.dtype": values["dtype"],
        "elmo.byte_order": "little",
        "elmo.dim": values["dim"],
        "elmo.layers": values["layers"],
        "elmo.columns": json.dumps(columns, sort_keys=True),
        **metadata,
    }
