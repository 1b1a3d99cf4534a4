"""A model folder is whole, or it is refused with one line."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmo.data.tokenizer import Tokenization
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.records import digest, sha256
from elmo.model.embedder import Embedder
from elmo.model.folder import Model, load_model
from elmo.model.weights import save_weights
from elmo.store import model_digest
from tests.elmo.conftest import save


def test_saved_and_loaded_gives_the_same_vectors(tiny_model: Model, tmp_path: Path) -> None:
    softmax = {"weight": torch.randn(len(tiny_model.vocabulary), 4), "bias": torch.randn(9)}
    made = save(tmp_path / "model", tiny_model, softmax=softmax, training={"corpus": "x"})
    found = load_model(tmp_path / "model")
    assert found.digest == made
    assert found.training == {"corpus": "x"}
    assert found.softmax is not None
    assert torch.equal(found.softmax["weight"], softmax["weight"])
    ours, reference = (Embedder(m).embed([["a", "gift"]])[0] for m in (found, tiny_model))
    np.testing.assert_array_equal(ours, reference)


def test_a_record_with_a_number_that_is_not_finite_loads(tiny_model: Model, tmp_path: Path) -> None:
    figures = {"perplexity": {"unigram": float("inf"), "average": float("nan"), "words": 3}}
    save(tmp_path / "model", tiny_model, training=figures)
    found = load_model(tmp_path / "model").training
    assert found == {"perplexity": {"unigram": None, "average": None, "words": 3}}


def test_what_would_not_load_is_not_written(tiny_model: Model, tmp_path: Path) -> None:
    words = Vocabulary([*tiny_model.vocabulary.words, "more"])
    softmax = {"weight": torch.randn(len(words) + 2, 4), "bias": torch.randn(len(words) + 2)}
    with pytest.raises(ElmoError, match="softmax"):
        save(tmp_path / "model", tiny_model, vocabulary=words, softmax=softmax)
    assert not (tmp_path / "model").exists()


def test_the_digest_names_the_model_not_its_history(tiny_model: Model, tmp_path: Path) -> None:
    digests = [
        save(
            tmp_path / str(k),
            tiny_model,
            vocabulary=Vocabulary(words),
            softmax=None,
            training={"run": k},
        )
        for k, words in enumerate([["<S>", "</S>", "<UNK>"]] * 2 + [["<S>", "</S>", "<UNK>", "a"]])
    ]
    assert digests[0] == digests[1] != digests[2]


def change(name: str, new: Callable[[Path], object]) -> Callable[[Path], object]:
    """Alter a piece and record its new checksum, so that only the disagreement is left to find."""

    def apply(folder: Path) -> None:
        new(folder / name)
        config = json.loads((folder / "config.json").read_text())
        config["pieces"][name] = sha256(folder / name)
        sign(folder, config)

    return apply


def sign(folder: Path, config: dict[str, Any]) -> None:
    """Write a config with the digest that belongs to it."""
    named = {key: config[key] for key in ("format", "model", "tokenizer", "pieces")}
    (folder / "config.json").write_text(json.dumps(config | {"digest": digest(named)}))


def fewer_words(path: Path) -> None:
    path.write_text("<S>\n</S>\n<UNK>\n")
    counts = path.with_name("counts.txt")
    counts.write_text("1\n1\n1\n")
    config = json.loads(path.with_name("config.json").read_text())
    config["pieces"]["counts.txt"] = sha256(counts)
    path.with_name("config.json").write_text(json.dumps(config))


def shape(key: str, value: object) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        config["model"][key] = value
        sign(folder, config)

    return apply


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    """Edit the text of a file as a user would, and nothing else."""

    def apply(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return apply


def weights(alter: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def apply(path: Path) -> None:
        tensors = load_file(path)
        alter(tensors)
        save_file(tensors, path)

    return change("weights.safetensors", apply)


def put(name: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return weights(lambda tensors: tensors.__setitem__(name, value(tensors[name]).contiguous()))


def nan(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[3] = torch.nan
    return tensor


def infinite(tensor: torch.Tensor) -> torch.Tensor:
    tensor.view(-1)[-1] = -torch.inf
    return tensor


BIAS, SOFTMAX = "bilm.lstm.bias.1", "softmax.weight"


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (shutil.rmtree, "no such model folder"),
        (
            lambda f: (f / "config.json").write_text("{}"),
            "has format None, .* make the model again",
        ),
        (edit("config.json", '"format": 2', '"format": 1'), "has format 1, .* again"),
        (edit("config.json", '"cell_clip": 1.0', '"cell_clip": 9.0'), r"config\.json: was altered"),
        (edit("config.json", '"whitespace"', '"unicode"'), r"config\.json: was altered"),
        (edit("counts.txt", "8", "80"), r"counts\.txt: truncated or altered"),
        (
            edit("training.json", '"digest"', '"a": 1, "digest"'),
            r"training\.json: truncated or altered",
        ),
        (edit("config.json", '"words.txt"', '"../words.txt"'), r"config\.json: pieces"),
        (lambda f: (f / "counts.txt").unlink(), r"counts\.txt: is missing"),
        (put(BIAS, nan), rf"{BIAS} holds values that are not finite"),
        (put(SOFTMAX, infinite), rf"{SOFTMAX} holds values that are not finite"),
        (put(BIAS, torch.Tensor.int), rf"{BIAS} holds I32, not float32"),
        (put(BIAS, torch.Tensor.bfloat16), rf"{BIAS} holds BF16, not float32"),
        (put(BIAS, lambda t: t[:, :9]), rf"{BIAS} has shape \(2, 9\), .* require \(2, 64\)"),
        (put(SOFTMAX, lambda t: t[:, :3]), r"softmax\.weight has shape \(9, 3\)"),
        (weights(lambda t: t.pop(SOFTMAX)), r"softmax\.weight has shape none"),
        (weights(lambda t: t.update(more=torch.zeros(2))), "more has shape .*require none"),
        (shape("layers", 10**6), "at most 256, found 1000000"),
        (shape("cells", 2**40), "cells must be a whole number of at least 1 and at most"),
        (shape("filters", [[1, 4], [60, 8]]), "a filter is 60 characters wide"),
        (shape("cell_clip", float("1e999")), "not valid JSON|cell_clip"),
        (
            change("weights.safetensors", lambda p: p.write_bytes(b"x" * 99)),
            r"weights\.safetensors: not a safetensors file",
        ),
        (shape("cells", 7), r"bilm\.lstm\.weight\.0 has shape .* require"),
        (shape("layers", 3), r"bilm\.lstm\.weight\.2 has shape none"),
        (
            shape("cells", "64"),
            "cells must be a whole number of at least 1 and at most 131,072, found '64'",
        ),
        (shape("gates", 4), "gates is not a setting of a model"),
        (
            change("words.txt", fewer_words),
            r"softmax\.weight has shape \(9, 4\), .* require \(3, 4\)",
        ),
        (
            change(
                "characters.json",
                lambda p: p.write_text('{"kind":"unicode","max_characters":50,"symbols":["a"]}'),
            ),
            r"char_embedding has shape \(261, .* require \(7,",
        ),
    ],
)
def test_pieces_that_disagree_are_refused(
    tiny_model_folder: Path, tmp_path: Path, broken: Callable[[Path], object], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_folder, folder)
    broken(folder)
    with pytest.raises(ElmoError, match=message) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_the_tokenizer_is_part_of_the_digest(tiny_model: Model, tmp_path: Path) -> None:
    kinds = [Tokenization("whitespace"), Tokenization("whitespace", sentences="split")]
    digests = set()
    for k, tokenizer in enumerate(kinds):
        made = save(tmp_path / str(k), tiny_model, tokenizer=tokenizer)
        loaded = load_model(str(tmp_path / str(k)))
        assert loaded.tokenizer == tokenizer
        assert made == loaded.digest == model_digest(tmp_path / str(k))
        digests.add(made)
    assert len(digests) == 2


def test_everybody_the_umask_allows_may_read_the_weights(tiny_model: Model, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        save(tmp_path / "model", tiny_model)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert set(modes.values()) == {0o640}, modes


def test_a_file_is_the_one_of_safetensors_and_its_digest_is_returned(tmp_path: Path) -> None:
    tensors = {
        "b": torch.arange(3),
        "a.x": torch.randn(4, 5).T,
        "empty": torch.zeros(0, 4),
        "number": torch.tensor(1.5),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "double": torch.ones(1, dtype=torch.float64),
        'é"': torch.ones(1),
    }
    save_file({name: value.contiguous() for name, value in tensors.items()}, tmp_path / "theirs")
    digest = save_weights(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digest == sha256(tmp_path / "ours")
    with pytest.raises(FileExistsError):
        save_weights(tmp_path / "ours", tensors)
