"""Manifests with one thing in them that contradicts the rest, and damaged records of every kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, refused

# What each kind of record is read by first.
KINDS = {
    "store": ("store/__elmo/manifest.json", COMMANDS["verify"]),
    "shards": ("task/manifest.json", COMMANDS["features"]),
}
Breakage = tuple[tuple[Any, ...], Any]
# Numbers that agree with nothing, though each is in its range; and what is no one's at all.
OTHERS: dict[str, tuple[str, Breakage]] = {
    f"{kind}-{'.'.join(map(str, spot))}": (kind, (spot, wrong))
    for kind, spot, wrong in [
        ("store", ("schema",), 1),
        ("store", ("kind",), "shards"),
        ("store", ("counts", "tokens"), 1),
        ("store", ("counts", "parts"), 1),
        ("store", ("parts",), []),
        ("store", ("parts", 0, "tokens"), 1),
        ("store", ("parts", 0, "sentences"), 2**50),
        ("store", ("layout", "dim"), 2**40),
        ("store", ("layout", "dim"), -2),
        ("store", ("layout", "dtype"), "float64"),
        ("store", ("layout", "layers"), ["layer_0"] * 10**6),
        ("store", ("layout", "layers"), ["../x"]),
        ("store", ("layout", "dim"), 10),
        ("store", ("parts", 0, "bytes"), 1),
        ("store", ("parts", 0, "types", "bytes"), 1),
        ("shards", ("shards", 0, "bytes"), 1),
        ("store", ("model", "tokenizer"), None),
        ("shards", ("schema",), 1),
        ("shards", ("kind",), "store"),
        ("shards", ("counts", "tokens"), 1),
        ("shards", ("shards", 0, "split"), "heldout"),
    ]
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_contradicts_itself(case: Path, name: str) -> None:
    kind, breakage = OTHERS[name]
    refuse(case, kind, breakage, KINDS[kind][1])


@pytest.mark.parametrize("name", [name for name in OTHERS if OTHERS[name][0] == "shards"])
def test_features_refuses_before_it_starts_workers(
    case: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.cluster.workers.actors", None)
    refuse(case, *OTHERS[name], COMMANDS["features"])


def refuse(case: Path, kind: str, breakage: Breakage, command: list[str]) -> None:
    name, _ = KINDS[kind]
    path = case / name
    value = json.loads(path.read_text(encoding="utf-8"))
    *spot, last = breakage[0]
    inner = value
    for key in spot:
        inner = inner[key]
    inner[last] = breakage[1]
    path.write_text(json.dumps(value), encoding="utf-8")
    refused(*command, cwd=case, names=name.split("/")[0])


# What is read first, each with what may happen to any file.
READ = {
    "store/__elmo/manifest.json": ["verify", "store"],
    "task/manifest.json": COMMANDS["features"],
    "model/config.json": ["embed", "model", "--input", "in.txt", "--output", "out.npz"],
    "model/characters.json": ["embed", "model", "--input", "in.txt", "--output", "out.npz"],
    "model/words.txt": ["perplexity", "model", "--input", "in.txt"],
}


DAMAGED = [(name, what) for name in READ for what in DAMAGE]


@pytest.mark.parametrize(("name", "what"), DAMAGED)
def test_damaged_files(case: Path, name: str, what: str) -> None:
    DAMAGE[what](case / name)
    refused(*READ[name], cwd=case, names=name.split("/")[0])
