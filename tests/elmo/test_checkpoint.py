"""A model folder is whole, or it is refused with one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.checkpoint import Model, load_model, save_model
from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.files import sha256
from elmo.vocabulary import Vocabulary


def test_saved_and_loaded_gives_the_same_vectors(tiny_model: Model, tmp_path: Path) -> None:
    softmax = {
        "weight": torch.randn(len(tiny_model.vocabulary), 4),
        "bias": torch.randn(9),
    }
    digest = save_model(
        tmp_path / "model", bilm=tiny_model.bilm, vocabulary=tiny_model.vocabulary,
        characters=tiny_model.characters, softmax=softmax, training={"corpus": "x"},
    )  # fmt: skip
    found = load_model(tmp_path / "model")
    assert found.digest == digest
    assert found.training == {"corpus": "x"}
    assert found.softmax is not None
    assert torch.equal(found.softmax["weight"], softmax["weight"])
    ours, reference = (Embedder(m).embed([["a", "gift"]])[0] for m in (found, tiny_model))
    np.testing.assert_array_equal(ours, reference)


def test_the_digest_names_the_model_not_its_history(tiny_model: Model, tmp_path: Path) -> None:
    digests = [
        save_model(
            tmp_path / str(k), bilm=tiny_model.bilm, vocabulary=Vocabulary(words),
            characters=tiny_model.characters, softmax=None, training={"run": k},
        )
        for k, words in enumerate([["<S>", "</S>", "<UNK>"]] * 2 + [["<S>", "</S>", "<UNK>", "a"]])
    ]  # fmt: skip
    assert digests[0] == digests[1] != digests[2]


def change(name: str, new: Callable[[Path], object]) -> Callable[[Path], object]:
    """Alter a piece and record its new checksum, so that only the disagreement is left to find."""

    def apply(folder: Path) -> None:
        new(folder / name)
        config = json.loads((folder / "config.json").read_text())
        config["pieces"][name] = sha256(folder / name)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def fewer_words(path: Path) -> None:
    path.write_text("<S>\n</S>\n<UNK>\n")
    path.with_name("counts.txt").unlink()


def shape(key: str, value: object) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"][key] = value
        (folder / "config.json").write_text(json.dumps(config))

    return apply


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (shutil.rmtree, "no such model folder"),
        (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
        (
            lambda f: (f / "config.json").write_text("{"),
            r"config\.json:1: not valid JSON",
        ),
        (lambda f: (f / "config.json").write_text("{}"), "format must be 1"),
        (
            lambda f: (f / "weights.safetensors").unlink(),
            r"weights\.safetensors: is missing",
        ),
        (
            lambda f: (f / "weights.safetensors").write_bytes(
                (f / "weights.safetensors").read_bytes()[:-9]
            ),
            r"weights\.safetensors: truncated or altered",
        ),
        (
            change("weights.safetensors", lambda p: p.write_bytes(b"x" * 99)),
            r"weights\.safetensors: not a safetensors file",
        ),
        (shape("cells", 7), r"bilm\.lstm\.weight\.0 has shape .* ask for"),
        (shape("layers", 3), r"bilm\.lstm\.weight\.2 is missing"),
        (shape("layers", 1), r"bilm\.lstm\..*\.1 is no part of the model"),
        (
            shape("activation", "gelu"),
            "activation must be 'relu' or 'tanh', found 'gelu'",
        ),
        (shape("cells", "64"), "cells must be a positive integer, found '64'"),
        (shape("gates", 4), "gates is not a setting of a model"),
        (
            change("words.txt", fewer_words),
            "words.txt has 3 words, the softmax",
        ),
        (
            change(
                "characters.json",
                lambda p: p.write_text('{"kind":"unicode","max_characters":50,"symbols":["a"]}'),
            ),
            r"char_embedding has shape \(261, .* ask for \(7,",
        ),
    ],
)
def test_pieces_that_disagree_are_refused(
    tiny_model_folder: Path,
    tmp_path: Path,
    broken: Callable[[Path], object],
    message: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder, folder)
    broken(folder)
    with pytest.raises(ElmoError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
