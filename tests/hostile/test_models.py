"""Model folders with another thing in them than their config says, through the commands that read
them; each disagreement has its line in tests/elmo/model/test_folder.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from elmo.io.records import digest, sha256
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("embed", "perplexity", "export", "finetune", "features")


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
