"""The `config.json` of a model folder, which describes the model. This module imports no torch.

The digest of a model covers its shape, its tokenizer and the bytes of its weights, words, counts
and characters. Its origin is recorded in `training.json`, with a separate digest, so equal models
have an equal `config.json` whenever and wherever they were trained.
"""

import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from elmo.data.tokenizer import Tokenization
from elmo.errors import Damaged, NotFound, altered_error, missing_error, suggest_name, suggest_path
from elmo.io.atomic import write_json
from elmo.io.location import Folder, Location
from elmo.io.records import FileName, Header, Sha256, digest
from elmo.settings import ModelShape

FORMAT_VERSION = 2  # the version of `config.json`
CONFIG_FILE, TRAINING_FILE = "config.json", "training.json"
MODEL_GROUP = "elmo.models"  # the entry points through which packages install models
_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `config.json`: `model` is the model's shape (`ModelShape.to_dict`), and
    `pieces` has the SHA-256 of the model's files.

    `training` is the SHA-256 of `training.json`, in folders written by an earlier version.
    """

    format: int
    model: dict[str, Any]
    tokenizer: Tokenization
    pieces: dict[FileName, Sha256]
    digest: Sha256
    training: Sha256 | UnsetType = UNSET

    def compute_digest(self) -> str:
        """Return the digest of the recorded values, which must equal `digest`."""
        values = {
            "format": self.format,
            "model": self.model,
            "tokenizer": self.tokenizer,
            "pieces": self.pieces,
        }
        return digest(msgspec.to_builtins(values))


def write_config(
    folder: Path, shape: ModelShape, tokenizer: Tokenization, *, pieces: dict[str, str]
) -> str:
    """Write `config.json` to a model folder; return the model's digest.

    `pieces` has the SHA-256 of the model's other files by name.
    """
    model = msgspec.to_builtins(shape.to_dict())
    record = ModelConfig(FORMAT_VERSION, model, tokenizer, pieces, "")
    record = msgspec.structs.replace(record, digest=record.compute_digest())
    write_json(folder / CONFIG_FILE, msgspec.to_builtins(record))
    return record.digest


def write_training_record(folder: Path, training: dict[str, Any]) -> None:
    """Write `training.json`, the record of a model's origin, together with its own digest."""
    write_json(folder / TRAINING_FILE, {**training, "digest": digest(training)})


def read_training_record(folder: Folder) -> dict[str, Any]:
    """Read `training.json` of a model folder; raise `ElmoError` if it is missing or was altered."""
    location = model_location(folder)
    if not location.exists(TRAINING_FILE):
        raise missing_error(location.path_of(TRAINING_FILE))
    training = location.read_record(TRAINING_FILE, dict[str, Any])
    recorded_digest = training.pop("digest", None)
    if read_config(location).training is UNSET and digest(training) != recorded_digest:
        raise altered_error(location.path_of(TRAINING_FILE), "its digest differs")
    return training


def model_location(folder: Folder) -> Location:
    """Return the location of a model folder, or of the installed model of that name.

    A package installs a model through an entry point in the group `elmo.models`, whose value is the
    Python package with the model's files. A model folder at that path takes precedence.
    """
    name = str(folder)
    if not name:
        raise NotFound("the model's name is empty; name a folder or an installed model")
    if not _MODEL_NAME.fullmatch(name) or (Path(name) / CONFIG_FILE).exists():
        return Location.parse(folder)
    for entry_point in entry_points(group=MODEL_GROUP, name=name):
        spec = find_spec(entry_point.module)
        if spec is not None and spec.origin is not None:
            return Location(Path(spec.origin).parent)
    return Location.parse(folder)


def read_config(folder: Folder) -> ModelConfig:
    """Read `config.json` of a model folder or installed model.

    Raises `ElmoError` if it is missing, has another format or was edited.
    """
    location = model_location(folder)
    if not (location.exists(CONFIG_FILE) or (location.local and location.local.is_dir())):
        suggestion = suggest_path(location.local, only_folders=True) if location.local else ""
        raise NotFound(f"{folder}: no such model folder{suggestion or suggest_model(str(folder))}")
    source = location.path_of(CONFIG_FILE)
    remedy = "make the model again with this version"
    header = location.read_record(CONFIG_FILE, Header)
    header.check_version(source, "format", FORMAT_VERSION, remedy=remedy)
    record = location.read_record(CONFIG_FILE, ModelConfig)
    if record.compute_digest() != record.digest:
        raise Damaged(
            f"{source}: was altered (its digest is {record.compute_digest()[:12]}…, but it says "
            f"{record.digest[:12]}…); restore it or make the model again"
        )
    return record


def suggest_model(name: str) -> str:
    """Return a hint for the end of the message that no model folder `name` exists. It depends on
    whether the name could be that of an installed or a registered model."""
    if name.startswith("models:/"):
        return "; pass a model folder: download the model from MLflow's registry first"
    if not _MODEL_NAME.fullmatch(name):
        return "; name another"
    installed_names = sorted(entry_point.name for entry_point in entry_points(group=MODEL_GROUP))
    choices = f"there are {', '.join(installed_names)}" if installed_names else "there are none"
    return (
        suggest_name(name, installed_names)
        or f", and no installed model of that name ({choices}); pip install the model's package"
    )
