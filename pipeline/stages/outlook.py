"""The size of the store that a text will become, printed where it is large."""

import shutil
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from elmo.settings import NetworkSettings

from ..terminal.progress import human_size, say

if TYPE_CHECKING:
    from ..settings.params import Params

LARGE = 1_000_000_000  # bytes of vectors from which their room is looked at
MATTERS = 0.1  # of the free disk


def warn_of_large_store(tokens: int, *, params: "Params", home: Path) -> None:
    """Print how large the store of the domain text's tokens will be, if it takes much of the free
    disk; `home` is a folder on the disk of the future store."""
    from elmo.store.layout import choose_layers

    layer = layer_bytes(tokens, params)
    layers = choose_layers(params.features.layers, model_layers=_network(params).layers + 1)
    size = layer * len([name for name in layers if name != "layer_0"])
    if size >= LARGE and size > MATTERS * (free := free_bytes(home)):
        say(
            f"features: {tokens:,} tokens will take {human_size(size)}, {human_size(free)} are "
            f"free; to make it less, {advice_for_smaller_store(layer, params.features.dtype)}"
        )


def advice_for_smaller_store(layer: int, dtype: str) -> str:
    """Return advice, for a message, on how to make a store smaller.

    `layer` is the size of one layer in bytes, `dtype` that of the vectors.
    """
    settings = [f'features.layers to "top" ({human_size(layer)})']
    if dtype != "int8":
        settings.append("features.dtype to int8 (half of float16)")
    return (
        f"set {' or '.join(settings)}, name less text in corpus.domain, or name a URL as storage "
        "in cluster.yaml"
    )


def layer_bytes(tokens: int, params: "Params") -> int:
    """Return the bytes that one layer's vectors of so many tokens take."""
    from elmo.store.dtypes import DTYPES

    return (
        tokens * 2 * _network(params).projection * np.dtype(DTYPES[params.features.dtype]).itemsize
    )


def free_bytes(home: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    there = next(path for path in (home, *home.parents) if path.is_dir())
    return shutil.disk_usage(there).free


def _network(params: "Params") -> NetworkSettings:
    from elmo.model.config import read_config

    if not params.pretrain.model:
        return params.pretrain.network
    shape = read_config(params.pretrain.model).model
    names = [field.name for field in fields(NetworkSettings)]
    return msgspec.convert({name: shape[name] for name in names if name in shape}, NetworkSettings)
