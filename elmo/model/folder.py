"""Save and load model folders, and check that their files belong together.

The files are `config.json` (the model's shape, its tokenizer and the SHA-256 of the other files),
`weights.safetensors`, `words.txt`, `counts.txt` (if counts are known), `characters.json` and
`training.json` (the model's origin). Loading never executes code from the folder.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from msgspec import UNSET
from torch import Tensor

from elmo.data.characters import Characters
from elmo.data.tokenizer import NO_TOKENIZER, TextTokenizer, Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError, Mismatch
from elmo.io.folders import link_or_copy, local_folder, new_folder
from elmo.io.location import Folder, Location
from elmo.io.records import check_sha256, sha256
from elmo.model.config import (
    CONFIG_FILE,
    TRAINING_FILE,
    ModelConfig,
    model_location,
    read_config,
    read_training_record,
    write_config,
    write_training_record,
)
from elmo.model.weights import is_finite, load_weights, save_weights, strip_prefix, weight_shapes
from elmo.nn.bilm import BiLM
from elmo.nn.device import check_device
from elmo.settings import ModelShape

WEIGHTS_FILE = "weights.safetensors"
_PIECES = (WEIGHTS_FILE, "words.txt", "characters.json")
_COUNTS_FILE = "counts.txt"
# Patterns of a model folder's file names, without and with config.json and the weights.
TEXT_FILE_PATTERN = r"words\.txt|counts\.txt|characters\.json|training\.json|README\.md"
MODEL_FILE_PATTERN = rf"config\.json|weights\.safetensors|{TEXT_FILE_PATTERN}"
ShapeByName = Mapping[str, tuple[int, ...]]
WeightPrecision = Literal["float32", "float16"]  # the precision of the weights file


@dataclass(frozen=True)
class Model:
    """A loaded model folder.

    `softmax` has `weight` (words, projection) and `bias` (words); it is None if there is none, as
    in 2018 files. `training` is the record of the model's origin. `digest` identifies the model by
    its shape, weights, words, characters and `tokenizer`. Treat a model as immutable: copy the
    modules that you want to change.
    """

    bilm: BiLM
    vocabulary: Vocabulary
    characters: Characters
    softmax: dict[str, Tensor] | None
    training: dict[str, Any]
    digest: str
    tokenizer: Tokenization = NO_TOKENIZER

    def encoder_input(self, tokens: list[str]) -> npt.NDArray[np.int32]:
        """Return the encoder's input for tokens: character ids (tokens, characters), or word ids
        (tokens,) for a model that reads words."""
        if self.bilm.shape.input_words is None:
            return self.characters.encode(tokens)
        return self.vocabulary.ids(tokens)

    def text_tokenizer(self) -> TextTokenizer:
        """Return a tokenizer that splits text as the training text was split.

        Raises `ElmoError` if the model has none, or its libraries are not installed.
        """
        return TextTokenizer(self.tokenizer)


def save_model(
    folder: Folder,
    *,
    bilm: BiLM,
    vocabulary: Vocabulary,
    characters: Characters,
    softmax: dict[str, Tensor] | None,
    training: dict[str, Any],
    tokenizer: Tokenization = NO_TOKENIZER,
    precision: WeightPrecision = "float32",
) -> str:
    """Write a model folder, completely or not at all; return the model's digest.

    `softmax` has the softmax's `weight` and `bias`, or is None if there is none; `training` is the
    record of the model's origin; `tokenizer` records how the training text was split. `precision`
    is that of the weights in the file; they are always read as float32. An existing folder is
    replaced only if it is a model; its `README.md` is kept.
    """
    check_filter_widths(bilm.shape, characters, source=str(folder))
    weights = {f"bilm.{name}": value for name, value in bilm.state_dict().items()}
    weights |= {f"softmax.{name}": value for name, value in (softmax or {}).items()}
    with new_folder(
        Location.parse(folder), required=(CONFIG_FILE, WEIGHTS_FILE), pattern=TEXT_FILE_PATTERN
    ) as new_model:
        weights = {name: _convert_weight(precision, name, value) for name, value in weights.items()}
        digests = {WEIGHTS_FILE: save_weights(new_model / WEIGHTS_FILE, weights)}
        vocabulary.save(new_model)
        characters.save(new_model / "characters.json")
        write_training_record(new_model, training)
        names = (*_PIECES, _COUNTS_FILE) if (new_model / _COUNTS_FILE).exists() else _PIECES
        digests |= {name: sha256(new_model / name) for name in names if name not in digests}
        digest = write_config(new_model, bilm.shape, tokenizer, pieces=digests)
        _load_without_weights(new_model)  # so that a folder that does not load is never written
        _copy_readme(Location.parse(folder), new_model)
        return digest


def _copy_readme(old_folder: Location, new_model: Path) -> None:
    """Copy the README.md of the folder that is replaced, if it has one, since people edit it."""
    if old_folder.local is not None and (readme := old_folder.local / "README.md").is_file():
        shutil.copyfile(readme, new_model / readme.name)


def _convert_weight(precision: WeightPrecision, name: str, weight: Tensor) -> Tensor:
    converted_weight = weight.to(getattr(torch, precision))
    if precision == "float16" and not is_finite(converted_weight):
        raise ElmoError(f"{name} is not finite in {precision}; train the model again")
    return converted_weight


def copy_model(model: Folder, out: Location) -> None:
    """Copy a model folder, or an installed model given by name, to `out` with the same digest."""
    with (
        local_folder(model_location(model)) as source,
        new_folder(out, required=(CONFIG_FILE, WEIGHTS_FILE), pattern=TEXT_FILE_PATTERN) as target,
    ):
        for name in _model_files(source):
            shutil.copyfile(source / name, target / name)
        _copy_readme(out, target)


def link_model(model: Folder, out: Path) -> None:
    """Create the folder `out` with the files of a model, as hard links if possible.

    Sharing the bytes is safe because model files never change.
    """
    out.mkdir()
    with local_folder(model_location(model)) as source:
        for name in _model_files(source):
            link_or_copy(source / name, out / name)


def _model_files(folder: Path) -> list[str]:
    names = (*_PIECES, _COUNTS_FILE, TRAINING_FILE, CONFIG_FILE)
    return [name for name in names if (folder / name).exists()]


def load_model(
    folder: Folder, *, device: str | torch.device = "cpu", with_softmax: bool = True
) -> Model:
    """Load a model folder, or an installed model given by name, onto a device.

    `with_softmax=False` leaves out the softmax, which may be most of the weights. Raises
    `ElmoError` if a file is missing, altered or does not match the others.
    """
    check_device(device)
    location = model_location(folder)
    read_config(location)  # check it before copying from a URL
    with local_folder(location) as local_path:
        model, weight_names = _load_without_weights(local_path)
        names_to_read = [name for name in weight_names if with_softmax or name.startswith("bilm.")]
        weights = load_weights(local_path / WEIGHTS_FILE, names_to_read, device=device)
        model.bilm.load_state_dict(strip_prefix(weights, "bilm."), assign=True)
        return replace(model, softmax=dict(strip_prefix(weights, "softmax.")) or None)


def _load_without_weights(folder: Path) -> tuple[Model, list[str]]:
    """Load a model folder without its weights; check their shapes, and return their names too."""
    config = read_config(folder)
    shape = ModelShape.from_dict(config.model, source=folder / CONFIG_FILE)
    _check_files(folder, config)
    characters = Characters.load(folder / "characters.json")
    check_filter_widths(shape, characters, source=str(folder))
    vocabulary = Vocabulary.load(folder)
    if shape.input_words not in (None, len(vocabulary)):
        raise Mismatch(
            f"{folder}: words.txt has {len(vocabulary)} words, not {shape.input_words}; restore it"
        )
    path = folder / WEIGHTS_FILE
    with torch.device("meta"):  # allocates no memory before all shapes are checked
        bilm = BiLM(shape, character_count=characters.size)
    shapes = weight_shapes(path)
    _check_shapes(bilm, shapes, len(vocabulary), path)
    model = Model(
        bilm,
        vocabulary,
        characters,
        None,
        read_training_record(folder),
        config.digest,
        config.tokenizer,
    )
    return model, list(shapes)


def _check_files(folder: Path, config: ModelConfig) -> None:
    if _COUNTS_FILE not in config.pieces and (folder / _COUNTS_FILE).exists():
        raise ElmoError(f"{folder / _COUNTS_FILE}: does not belong to this model; remove it")
    for name, digest in sorted(config.pieces.items()):
        check_sha256(folder / name, digest)
    if config.training is not UNSET:
        check_sha256(folder / TRAINING_FILE, config.training)


def check_filter_widths(shape: ModelShape, characters: Characters, *, source: str) -> None:
    """Raise `ElmoError` if a convolution filter is wider than the longest token.

    The message begins with `source`.
    """
    max_width = max((width for width, _ in shape.filters), default=0)
    if shape.input_words is None and max_width > characters.max_characters:
        raise ElmoError(
            f"{source}: a filter is {max_width} characters wide and a token has at most "
            f"{characters.max_characters}; raise max_characters or use narrower filters"
        )


def _check_shapes(bilm: BiLM, shapes: ShapeByName, word_count: int, path: Path) -> None:
    """Check the name and shape of every weight in the file; a softmax is optional."""
    expected_shapes = {
        f"bilm.{name}": tuple(value.shape) for name, value in bilm.state_dict().items()
    }
    if any(name.startswith("softmax.") for name in shapes):
        expected_shapes |= {
            "softmax.weight": (word_count, bilm.shape.projection),
            "softmax.bias": (word_count,),
        }
    for name in [*expected_shapes, *shapes]:
        if shapes.get(name) != expected_shapes.get(name):
            raise ElmoError(
                f"{path}: {name} has shape {shapes.get(name, 'none')}, but config.json, words.txt "
                f"and characters.json require {expected_shapes.get(name, 'none')}"
            )
