"""Stores that are not as their manifest says, and manifests that name what is not theirs."""

import random
from pathlib import Path

import pytest

from tests.files import flip
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("verify", "dump", "neighbors")


def part(case: Path, kind: str = "part", number: int = 0) -> Path:
    """A file of the store by its kind and the number of its part."""
    return sorted((case / "store").rglob(f"{kind}-*"))[number]


@pytest.mark.parametrize(("command", "kind", "what"), paired(READERS, ["part", "types"], DAMAGE))
def test_damaged_parts(case: Path, command: str, kind: str, what: str) -> None:
    path = part(case, kind)
    DAMAGE[what](path)
    refused(*COMMANDS[command], cwd=case, names=path.name)


@pytest.mark.parametrize(("command", "seed"), paired(READERS, range(8)))
def test_a_flipped_bit(case: Path, command: str, seed: int) -> None:
    draw = random.Random(seed)
    path = part(case, draw.choice(["part", "types"]), draw.randrange(2))
    flip(path, draw.randrange(path.stat().st_size), draw.randrange(8))
    refused(*COMMANDS[command], cwd=case, names=path.name)


FOLDERS = folders("store", {"shards": "task", "a model": "model"})


@pytest.mark.parametrize(("command", "what"), paired([*READERS, "register"], FOLDERS))
def test_folders_that_are_no_store(case: Path, command: str, what: str) -> None:
    FOLDERS[what](case / "store")
    refused(*COMMANDS[command], cwd=case, names="store")
