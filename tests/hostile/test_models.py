"""Model folders with another thing in them than their config says, signed again where that hides
it: the checks behind the checksum are asked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from elmo.io.records import digest, sha256
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("embed", "perplexity", "export", "finetune", "features")
WEIGHTS = "model/weights.safetensors"
Tensors = dict[str, torch.Tensor]


def sign(folder: Path) -> None:
    """Make the config agree with the bytes of the other files."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in list(config["pieces"]):
        if (folder / name).is_file():
            config["pieces"][name] = sha256(folder / name)
        else:
            del config["pieces"][name]
    config["training"] = sha256(folder / "training.json")
    covered = {name: config[name] for name in ("format", "model", "tokenizer", "pieces")}
    config["digest"] = digest(covered)
    path.write_text(json.dumps(config))


def at(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], None]:
    """Change the first tensor whose name holds `name`."""

    def apply(tensors: Tensors) -> None:
        found = next(one for one in sorted(tensors) if name in one)
        tensors[found] = change(tensors[found]).contiguous()

    return apply


def fill(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return change


def without(name: str) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        for found in [one for one in tensors if name in one]:
            del tensors[found]

    return apply


def named(new: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(new, torch.zeros(2, 2))


TENSORS: dict[str, Callable[[Tensors], object]] = {
    "no number in an LSTM": at("bilm.lstm", fill(float("nan"))),
    "no number in the encoder": at("bilm.encoder", fill(float("nan"))),
    "no number in the softmax": at("softmax.bias", fill(float("nan"))),
    "endless": at("bilm.lstm", fill(float("inf"))),
    "whole numbers": at("bilm.lstm", lambda tensor: tensor.int()),
    "bfloat16": at("bilm.encoder", lambda tensor: tensor.bfloat16()),
    "one column less": at("bilm.lstm.weight", lambda tensor: tensor[..., :-1]),
    "transposed": at("softmax.weight", lambda tensor: tensor.T),
    "empty": at("bilm.encoder", lambda tensor: tensor[:0]),
    "one tensor more": named("bilm.lstm.weight.9"),
    "no LSTM": without("bilm.lstm"),
    "no encoder": without("bilm.encoder"),
    "one tensor less": without("bilm.lstm.weight.0"),
    "half a softmax": without("softmax.bias"),
    "nothing": without(""),
    "a word too many": lambda t: [
        at(n, lambda x: torch.cat([x, x[:1]]))(t) for n in ("softmax.w", "softmax.b")
    ],
}


@pytest.mark.parametrize(("command", "what"), paired(["embed", "perplexity", "finetune"], TENSORS))
def test_tensors_that_do_not_fit(case: Path, command: str, what: str) -> None:
    tensors = load_file(case / WEIGHTS)
    TENSORS[what](tensors)
    save_file(tensors, case / WEIGHTS)
    sign(case / "model")
    line = refused(*COMMANDS[command], cwd=case, names="model")
    assert "config.json:" not in line, "the weights are at fault"


@pytest.mark.parametrize("name", ["weights.safetensors", "training.json", "counts.txt"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files(case: Path, name: str, what: str) -> None:
    DAMAGE[what](case / "model" / name)
    for command in ("embed", "finetune", "features"):
        if command == "features" and name != "training.json":
            continue  # the weights are read by the actors
        refused(*COMMANDS[command], cwd=case, names=f"model/{name}")


WORDS: dict[str, tuple[str, bytes]] = {
    "no beginning": ("words.txt", b"</S>\n<UNK>\n" + b"".join(b"w%d\n" % k for k in range(7))),
    "a word twice": ("words.txt", b"<S>\n</S>\n<UNK>\n" + b"the\n" * 6),
    "a word too few": ("words.txt", b"<S>\n</S>\n<UNK>\nthe\n"),
    "no word": ("words.txt", b""),
    "not UTF-8": ("words.txt", b"<S>\n</S>\n<UNK>\n\xff\n"),
    "counts of other words": ("counts.txt", b"1\n" * 4),
    "counts that are none": ("counts.txt", b"one\n" * 9),
    "another kind of characters": (
        "characters.json",
        b'{"kind": "letters", "max_characters": 50, "symbols": []}',
    ),
    "other characters": (
        "characters.json",
        b'{"kind": "unicode", "max_characters": 50, "symbols": ["a"]}',
    ),
    "training that is a list": ("training.json", b"[]"),
}


@pytest.mark.parametrize(("command", "what"), paired(["embed", "finetune"], WORDS))
def test_words_that_do_not_fit(case: Path, command: str, what: str) -> None:
    name, data = WORDS[what]
    (case / "model" / name).write_bytes(data)
    sign(case / "model")
    refused(*COMMANDS[command], cwd=case, names="model")


@pytest.mark.parametrize(
    "lineage",
    [
        {"run_id": 7},
        {"perplexity": 7},
        {"perplexity": {"after": {"task": {"average": "low"}}}},
        {"stage": []},
    ],
)
def test_a_lineage_that_is_none_is_not_registered(case: Path, lineage: dict[str, Any]) -> None:
    (case / "model" / "training.json").write_text(json.dumps(lineage))
    sign(case / "model")
    refused(*COMMANDS["register"], cwd=case, names="model")


FOLDERS = folders("model", {"shards": "task", "a store": "store", "a vocabulary": "vocab"})


@pytest.mark.parametrize(
    ("command", "what"), paired([*READERS, "register", "neighbors", "dump-tokens"], FOLDERS)
)
def test_folders_that_are_no_model(case: Path, command: str, what: str) -> None:
    FOLDERS[what](case / "model")
    refused(*COMMANDS[command], cwd=case, names="model")
