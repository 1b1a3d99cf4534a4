"""Reads and writes the 2018 files, options.json and HDF5 weights, without loss.

A model folder lays out weights in the same way (gates, convolutions, a bias without the forget
bias), so import and export only rename and stack tensors. The 2018 files have no softmax.
"""

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elmo.data.arrays import Floats
from elmo.data.characters import DEFAULT_MAX_CHARACTERS, Characters
from elmo.data.tokenizer import installed_tokenization
from elmo.data.vocabulary import SPECIAL_WORDS, Vocabulary
from elmo.errors import Damaged, ElmoError, first_line
from elmo.io.atomic import new_file_if_absent, write_json
from elmo.io.folders import check_output_folder
from elmo.io.location import Location
from elmo.io.records import check_regular_file, read_json, sha256
from elmo.model.config import CONFIG_FILE
from elmo.model.folder import TEXT_FILE_PATTERN, WEIGHTS_FILE, load_model, save_model
from elmo.nn.bilm import BiLM
from elmo.settings import ModelShape

CHARACTER_COUNT = 261  # rows of the character embedding, except the one for masks
MAX_COMPRESSION_RATIO = 1100  # bytes of values per byte of the file; gzip reaches 1032
# The names of HDF5 datasets, by the names of the model's weights.
_LSTM_NAMES = {"weight": "W_0", "bias": "B", "project": "W_P_0"}
_HIGHWAY_NAMES = {
    "carry_weight": "W_carry",
    "carry_bias": "b_carry",
    "transform_weight": "W_transform",
    "transform_bias": "b_transform",
}


def import_2018(
    options: str | Path,
    weights: str | Path,
    out: str | Path,
    *,
    vocabulary: str | Path | None = None,
    embedding: str | Path | None = None,
    tokenizer: str = "whitespace",
    overwrite: bool = False,
) -> str:
    """Convert the options.json and HDF5 weights of a 2018 ELMo (bilm-tf, AllenNLP) to a model
    folder; return the model's digest.

    `vocabulary` is the word list that came with the model; it is needed if the model reads words,
    or to train a softmax. `embedding` is the HDF5 file of the word vectors, if they are not among
    the weights. The files do not say how text was tokenized, so the name `tokenizer` is recorded.
    An existing model is replaced only with `overwrite`. Raises `ElmoError` if an option or dataset
    is missing or does not fit.
    """
    check_output_folder(
        Location(out), required=(CONFIG_FILE, WEIGHTS_FILE), pattern=TEXT_FILE_PATTERN
    )
    if not overwrite and (files := Location(out).names()):
        raise ElmoError(f"{out}: already contains {files[0]}; choose another folder, or delete it")
    options, weights = Path(options), Path(weights)
    vocabulary = None if vocabulary is None else Path(vocabulary)
    embedding = None if embedding is None else Path(embedding)
    tokenization = installed_tokenization(tokenizer)
    model_shape = read_options(options)
    word_vocabulary = Vocabulary.load(vocabulary) if vocabulary else Vocabulary([*SPECIAL_WORDS])
    if model_shape.input_words is None and embedding is not None:
        raise ElmoError(f"{options}: the model reads characters; leave out --embedding")
    if model_shape.input_words is not None:
        if vocabulary is None:
            raise ElmoError(f"{weights}: this model reads words; pass them with --vocabulary")
        model_shape = replace(model_shape, input_words=len(word_vocabulary))
    state: dict[str, Tensor] = {}
    for path in dict.fromkeys((weights, embedding or weights)):
        with _open_hdf5(path) as file:
            names: list[str] = []
            file.visit(names.append)
            if path == weights:
                _check_no_more_datasets(model_shape, names, path)
            for name, datasets in _datasets(model_shape, set(names)):
                if path == (embedding or weights if name == "encoder.embedding" else weights):
                    arrays = [_read_array(file, path, *dataset) for dataset in datasets]
                    state[name] = _join_datasets(name, arrays)
    with torch.device("meta"):
        bilm = BiLM(model_shape, character_count=CHARACTER_COUNT)
    bilm.load_state_dict(state, assign=True)
    inputs = {"options": sha256(options), "weights": sha256(weights)}
    if embedding is not None:
        inputs["embedding"] = sha256(embedding)
    return save_model(
        out,
        bilm=bilm,
        vocabulary=word_vocabulary,
        characters=Characters(),
        softmax=None,
        training={"stage": "import", "inputs": inputs},
        tokenizer=tokenization,
    )


def export_2018(model: str | Path, options: str | Path, weights: str | Path) -> None:
    """Write a model folder to two new files that bilm-tf and AllenNLP read: `options`
    (options.json) and HDF5 `weights`. The softmax and the training record are left out.

    Equal weights that an interrupted export left without options are kept.
    """
    if os.path.realpath(options) == os.path.realpath(weights):  # Path.resolve fails on a loop
        raise ElmoError(f"{weights}: is also the options file; pass another file for the weights")
    source_model = load_model(model, with_softmax=False)
    model_shape = source_model.bilm.shape
    if source_model.characters != Characters():
        raise ElmoError(
            f"{model}: reads up to {source_model.characters.max_characters} "
            f"{source_model.characters.kind} characters per token; files of 2018 support only "
            "50 bytes"
        )
    state = source_model.bilm.state_dict()
    buffer = io.BytesIO()  # on a full disk, the HDF5 library itself would crash
    with _load_h5py().File(buffer, "w") as file:
        for name, datasets in _datasets(model_shape, None):
            arrays = list(state[name]) if name.startswith("lstm.") else [state[name]]
            for (dataset, shape), array in zip(datasets, arrays, strict=True):
                file.create_dataset(dataset, data=array.reshape(shape).numpy(), dtype="float32")
    options, weights = Path(options), Path(weights)
    with new_file_if_absent(options) as new_options:
        write_json(new_options, _options_json(model_shape))
        if not weights.is_file() or weights.read_bytes() != buffer.getbuffer():
            with new_file_if_absent(weights) as new_weights:
                new_weights.write_bytes(buffer.getbuffer())


def read_options(path: Path) -> ModelShape:
    """Read the options.json of a 2018 ELMo; return the shape of the model. Raises `ElmoError` for
    options that this package does not support."""
    options = read_json(path)
    lstm = _section(path, options, "lstm")
    clip = {name: lstm.get(name) or None for name in ("cell_clip", "proj_clip")}
    shape: dict[str, Any] = {
        "cells": _option(path, lstm, "lstm", "dim"),
        "projection": _option(path, lstm, "lstm", "projection_dim"),
        "layers": _option(path, lstm, "lstm", "n_layers"),
        "cell_clip": clip["cell_clip"],
        "projection_clip": clip["proj_clip"],
        "skip": lstm.get("use_skip_connections", False),
    }
    if "char_cnn" not in options:
        word_encoder = {"char_dim": 0, "filters": [], "activation": "relu", "highways": 0}
        return ModelShape.from_dict(shape | word_encoder | {"input_words": 1}, source=path)
    cnn = _section(path, options, "char_cnn")
    characters = cnn.get("n_characters", CHARACTER_COUNT + 1)
    if characters not in (CHARACTER_COUNT, CHARACTER_COUNT + 1):
        raise ElmoError(
            f"{path}: char_cnn.n_characters must be 262 (261 while training), found {characters!r}"
        )
    if cnn.get("max_characters_per_token", DEFAULT_MAX_CHARACTERS) != DEFAULT_MAX_CHARACTERS:
        raise ElmoError(
            f"{path}: char_cnn.max_characters_per_token must be {DEFAULT_MAX_CHARACTERS}, "
            f"found {cnn['max_characters_per_token']!r}"
        )
    shape |= {
        "char_dim": _option(path, _section(path, cnn, "embedding"), "char_cnn.embedding", "dim"),
        "filters": _option(path, cnn, "char_cnn", "filters"),
        "activation": _option(path, cnn, "char_cnn", "activation"),
        "highways": cnn.get("n_highway") or 0,
        "input_words": None,
    }
    return ModelShape.from_dict(shape, source=path)


def _options_json(model_shape: ModelShape) -> dict[str, Any]:
    """Return the content of options.json for a model of the given shape."""
    options: dict[str, Any] = {
        "lstm": {
            "cell_clip": model_shape.cell_clip,
            "dim": model_shape.cells,
            "n_layers": model_shape.layers,
            "proj_clip": model_shape.projection_clip,
            "projection_dim": model_shape.projection,
            "use_skip_connections": model_shape.skip,
        }
    }
    if model_shape.input_words is None:
        options["char_cnn"] = {
            "activation": model_shape.activation,
            "embedding": {"dim": model_shape.char_dim},
            "filters": [list(pair) for pair in model_shape.filters],
            "max_characters_per_token": DEFAULT_MAX_CHARACTERS,
            "n_characters": CHARACTER_COUNT + 1,
            "n_highway": model_shape.highways,
        }
    return options


NamedShape = tuple[str, tuple[int, ...]]


def _datasets(
    model_shape: ModelShape, names: set[str] | None
) -> list[tuple[str, list[NamedShape]]]:
    """Return, for each weight of the model, the HDF5 datasets it is read from, with their shapes.

    `names` are the names in the file (None: a new file); if the model has a single layer, the paths
    may have no `MultiRNNCell`.
    """
    datasets: list[tuple[str, list[NamedShape]]] = []
    if model_shape.input_words is not None:
        embedding_shape = (model_shape.input_words, model_shape.projection)
        datasets.append(("encoder.embedding", [("embedding", embedding_shape)]))
    else:
        datasets += _encoder_datasets(model_shape)
    for layer in range(model_shape.layers):
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (2 * model_shape.projection, 4 * model_shape.cells),
            "bias": (4 * model_shape.cells,),
            "project": (model_shape.cells, model_shape.projection),
        }
        for name, shape in shapes.items():
            if name == "project" and model_shape.cells == model_shape.projection:
                continue
            paths = [_cell_path(k, layer, model_shape.layers, names) for k in (0, 1)]
            directions = [(f"{path}/{_LSTM_NAMES[name]}", shape) for path in paths]
            datasets.append((f"lstm.{name}.{layer}", directions))
    return datasets


def _check_no_more_datasets(model_shape: ModelShape, names: list[str], path: Path) -> None:
    """Raise `ElmoError` if a file has layers or filters that options.json does not name."""
    used_names = [name for _, shapes in _datasets(model_shape, set(names)) for name, _ in shapes]
    prefixes = ("RNN_", "CNN") if model_shape.input_words is None else ("RNN_",)
    for name in names:
        if name.startswith(prefixes) and not any(key.startswith(name) for key in used_names):
            raise ElmoError(f"{path}: has {name}, which options.json does not name; correct it")


def _encoder_datasets(model_shape: ModelShape) -> list[tuple[str, list[NamedShape]]]:
    filters = sum(count for _, count in model_shape.filters)
    embedding_shape = (CHARACTER_COUNT, model_shape.char_dim)
    datasets: list[tuple[str, list[NamedShape]]] = [
        ("encoder.char_embedding", [("char_embed", embedding_shape)])
    ]
    for k, (width, count) in enumerate(model_shape.filters):
        weight: tuple[int, ...] = (1, width, model_shape.char_dim, count)
        datasets.append((f"encoder.conv_weight.{k}", [(f"CNN/W_cnn_{k}", weight)]))
        datasets.append((f"encoder.conv_bias.{k}", [(f"CNN/b_cnn_{k}", (count,))]))
    for k in range(model_shape.highways):
        for name, dataset in _HIGHWAY_NAMES.items():
            shape: tuple[int, ...] = (filters, filters) if name.endswith("weight") else (filters,)
            datasets.append((f"encoder.highway.{k}.{name}", [(f"CNN_high_{k}/{dataset}", shape)]))
    if filters != model_shape.projection:
        projection_shape: tuple[int, ...] = (filters, model_shape.projection)
        datasets.append(("encoder.project_weight", [("CNN_proj/W_proj", projection_shape)]))
        datasets.append(("encoder.project_bias", [("CNN_proj/b_proj", projection_shape[1:])]))
    return datasets


def _cell_path(direction: int, layer: int, layers: int, names: set[str] | None) -> str:
    single_cell_path = f"RNN_{direction}/RNN/LSTMCell"
    if layers == 1 and names is not None and f"{single_cell_path}/W_0" in names:
        return single_cell_path
    return f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"


def _join_datasets(name: str, arrays: list[Floats]) -> Tensor:
    """Build a weight from its datasets: stack both directions, flatten a convolution."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if name.startswith("lstm."):
        return torch.stack(tensors)
    return tensors[0].flatten(0, 2) if tensors[0].dim() == 4 else tensors[0]


def _load_h5py() -> Any:
    try:
        import h5py
    except ModuleNotFoundError:
        raise ElmoError("2018 files need h5py; run: pip install 'elmo-pipeline[legacy]'") from None
    return h5py


@contextmanager
def _open_hdf5(path: Path) -> Iterator[Any]:
    """Yield an h5py file to read; raise `Damaged` if reading it fails in the block."""
    h5py = _load_h5py()
    check_regular_file(path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    except ElmoError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        reason = first_line(error)
        raise Damaged(f"{path}: not an HDF5 file, or damaged ({reason}); restore it") from None


def _read_array(file: Any, path: Path, name: str, shape: tuple[int, ...]) -> Floats:
    h5py, dataset = _load_h5py(), file
    for component in name.split("/"):
        link = dataset.get(component, getlink=True) if isinstance(dataset, h5py.Group) else None
        if not isinstance(link, h5py.HardLink | None):
            raise ElmoError(f"{path}: {name} is a link; copy the values into this file")
        dataset = link and dataset[component]
    if not isinstance(dataset, h5py.Dataset):
        raise ElmoError(f"{path}: has no dataset {name}; options.json requires it")
    actual_shape = tuple(dataset.shape or ())
    if name == "char_embed" and actual_shape == (shape[0] + 1, *shape[1:]):
        raise ElmoError(
            f"{path}: char_embed has 262 rows instead of 261; delete the row for padding"
        )
    if actual_shape != shape:
        source = "the vocabulary" if name == "embedding" else "options.json"
        raise ElmoError(f"{path}: {name} has shape {actual_shape}, but {source} requires {shape}")
    if dataset.dtype.kind != "f":
        raise ElmoError(f"{path}: {name} holds {dataset.dtype}, not floats; convert it")
    if dataset.external or dataset.nbytes > MAX_COMPRESSION_RATIO * dataset.id.get_storage_size():
        raise ElmoError(f"{path}: {name} is not stored in this file; copy the values into it")
    array = np.asarray(dataset[...], np.float32)
    if not np.isfinite(array).all():
        raise ElmoError(f"{path}: {name} holds values that are not finite")
    return array


def _section(path: Path, options: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(options.get(name), dict):
        raise ElmoError(f"{path}: {name} must be a section, found {json.dumps(options.get(name))}")
    section: dict[str, Any] = options[name]
    return section


def _option(path: Path, section: dict[str, Any], section_name: str, name: str) -> Any:
    if name not in section:
        raise ElmoError(f"{path}: {section_name}.{name} is missing")
    return section[name]
