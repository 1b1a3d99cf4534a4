"""Manifests with one thing in them that contradicts the rest, and damaged records of every kind."""

from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, refused

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
