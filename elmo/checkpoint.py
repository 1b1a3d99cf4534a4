"""The model folder: one path saves and loads everything, and checks that the pieces agree.

`config.json` (the model's shape and the SHA-256 of each piece), `weights.safetensors`, `words.txt`
with `counts.txt` where counts are known, `characters.json`, `training.json` (lineage).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from elmo.adaptive import words_in
from elmo.bilm import BiLM, Config
from elmo.characters import Characters
from elmo.errors import ElmoError
from elmo.files import check_sha256, digest, new_folder, read_json, sha256, write_json
from elmo.vocabulary import Vocabulary

FORMAT = 1
_PIECES = ("weights.safetensors", "words.txt", "characters.json")


@dataclass(frozen=True)
class Model:
    """A loaded model folder.

    `softmax` holds `weight` (words, P) and `bias` (words), or the tensors of an adaptive one, or is
    None: the 2018 files have none.
    `digest` names the model by its shape, weights, words and characters.
    """

    bilm: BiLM
    vocabulary: Vocabulary
    characters: Characters
    softmax: dict[str, Tensor] | None
    training: dict[str, Any]
    digest: str

    def inputs(self, tokens: list[str]) -> npt.NDArray[np.int32]:
        """What the encoder reads for N tokens: characters (N, K), or word ids (N,)."""
        if self.bilm.config.input_words is None:
            return self.characters.encode(tokens)
        return self.vocabulary.ids(tokens)


def save_model(
    folder: Path,
    *,
    bilm: BiLM,
    vocabulary: Vocabulary,
    characters: Characters,
    softmax: dict[str, Tensor] | None,
    training: dict[str, Any],
) -> str:
    """Write a model folder, whole or not at all; return its digest."""
    weights = {f"bilm.{name}": value for name, value in bilm.state_dict().items()}
    weights |= {f"softmax.{name}": value for name, value in (softmax or {}).items()}
    with new_folder(folder) as new:
        save_file(
            {name: value.detach().float().cpu().contiguous() for name, value in weights.items()},
            new / "weights.safetensors",
        )
        vocabulary.save(new)
        characters.save(new / "characters.json")
        pieces = {name: sha256(new / name) for name in _PIECES}
        config = {"format": FORMAT, "model": bilm.config.to_dict(), "pieces": pieces}
        write_json(new / "config.json", config)
        write_json(new / "training.json", training)
    return digest(config)


def load_model(folder: Path, *, device: str | torch.device = "cpu") -> Model:
    """Load a model folder; `ElmoError` where a piece is missing, altered or does not fit."""
    if not folder.is_dir():
        raise ElmoError(f"{folder}: no such model folder")
    source = folder / "config.json"
    value = read_json(source)
    if value.get("format") != FORMAT:
        raise ElmoError(f"{source}: format must be {FORMAT}, found {value.get('format')!r}")
    pieces, shape = value.get("pieces"), value.get("model")
    if not isinstance(shape, dict) or not isinstance(pieces, dict):
        raise ElmoError(f"{source}: model and pieces must be JSON objects")
    config = Config.from_dict(shape, source=source)
    for name in _PIECES:
        if name not in pieces:
            raise ElmoError(f"{source}: pieces must name {name}")
        check_sha256(folder / name, pieces[name])
    characters = Characters.load(folder / "characters.json")
    vocabulary = Vocabulary.load(folder)
    if config.input_words not in (None, len(vocabulary)):
        raise ElmoError(
            f"{folder}: words.txt has {len(vocabulary)} words, the model reads {config.input_words}"
        )
    weights = _load_weights(folder / "weights.safetensors", str(device))
    bilm = BiLM(config, characters=characters.size).to(device)
    _fill(bilm, weights, folder / "weights.safetensors")
    softmax = {n[8:]: value for n, value in weights.items() if n.startswith("softmax.")} or None
    if softmax is not None and words_in(softmax) != len(vocabulary):
        raise ElmoError(
            f"{folder}: words.txt has {len(vocabulary)} words, "
            f"the softmax is for {words_in(softmax)}"
        )
    training = read_json(folder / "training.json")
    return Model(bilm, vocabulary, characters, softmax, training, digest(value))


def _load_weights(path: Path, device: str) -> dict[str, Tensor]:
    try:
        return load_file(path, device=device)
    except SafetensorError as error:
        raise ElmoError(f"{path}: not a safetensors file ({error})") from None


def _fill(bilm: BiLM, weights: dict[str, Tensor], path: Path) -> None:
    """Copy the weights into the model, after a check of every name and shape."""
    parameters = bilm.state_dict()
    for name, parameter in parameters.items():
        found = weights.get(f"bilm.{name}")
        if found is None:
            raise ElmoError(f"{path}: bilm.{name} is missing; config.json asks for it")
        if found.shape != parameter.shape:
            raise ElmoError(
                f"{path}: bilm.{name} has shape {tuple(found.shape)}, "
                f"config.json and characters.json ask for {tuple(parameter.shape)}"
            )
        parameter.copy_(found)
    for name in weights:
        known = name.startswith("softmax.") or name.removeprefix("bilm.") in parameters
        if not known:
            raise ElmoError(f"{path}: {name} is no part of the model that config.json describes")
