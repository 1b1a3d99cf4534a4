"""A tiny model with random weights in which clipping bites."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.tokenizer import Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.model.folder import Model, load_model, save_model
from elmo.settings import StoreSettings
from elmo.store.build import build
from tests.elmo.run_job import NETWORK, random_bilm

TINY = replace(
    NETWORK, filters=((1, 4), (2, 8), (3, 8)), projection=4, cell_clip=1.0, projection_clip=1.0
)
WORDS = ["<S>", "</S>", "<UNK>", "the", "a", "gift", "for", "has", "he"]


WHITESPACE = Tokenization("whitespace")


def batch_to_ids(sentences: Sequence[Sequence[str]]) -> torch.Tensor:
    """The ids of the tiny model's characters, bytes, as AllenNLP's function gives them."""
    return torch.from_numpy(Characters().encode_batch(sentences))


def save_tiny_model(folder: Path, *, tokenizer: Tokenization = WHITESPACE, seed: int = 0) -> None:
    """Write the tiny model with a softmax."""
    generator = torch.Generator().manual_seed(seed)
    bilm = random_bilm(TINY, 0.5, generator)
    softmax = {
        "weight": torch.randn(len(WORDS), TINY.projection, generator=generator),
        "bias": torch.randn(len(WORDS), generator=generator),
    }
    save_model(
        folder,
        bilm=bilm,
        vocabulary=Vocabulary(WORDS, [40, 40, 9, 8, 7, 6, 5, 4, 3]),
        characters=Characters(),
        softmax=softmax,
        training={},
        tokenizer=tokenizer,
    )


def save(folder: Path, model: Model, **changes: Any) -> str:
    """Write a model with other pieces than its own; return its digest."""
    pieces = {name: piece for name, piece in vars(model).items() if name != "digest"}
    return save_model(folder, **(pieces | changes))


def make_store(
    folder: Path,
    sentences: Sequence[Sequence[str]],
    model: Path,
    settings: StoreSettings | None = None,
    **shards: Any,
) -> Path:
    """Write `folder`/shards and from them `folder`/store, which is returned."""
    write_shards(folder / "shards", sentences, **shards)
    options = {"shards": folder / "shards", "model": model}
    build(folder / "store", settings=settings or StoreSettings(), **options)
    return folder / "store"


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a softmax; copy it before altering it."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny_model(folder)
    return folder


@pytest.fixture
def tiny_model(tiny_model_folder: Path) -> Model:
    """The tiny model, loaded anew for each test."""
    return load_model(tiny_model_folder)
