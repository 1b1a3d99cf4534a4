"""Stores that are not as their manifest says, and manifests that name what is not theirs."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
MANIFEST = "__elmo/manifest.json"
READERS = ("verify", "dump", "dump lists", "neighbors")


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
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    refused(*COMMANDS[command], cwd=case, names=path.name)


def exchanged(case: Path) -> None:
    one, two = part(case), part(case, number=1)
    kept = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(kept)


def link(path: Path, name: str) -> None:
    path.unlink()
    path.symlink_to(name)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte less": lambda case: os.truncate(part(case), part(case).stat().st_size - 1),
    "a byte more": lambda case: part(case).write_bytes(part(case).read_bytes() + b"\0"),
    "parts exchanged": exchanged,
    "types for a part": lambda case: shutil.copyfile(part(case, "types"), part(case)),
    "a link to another part": lambda case: link(part(case), part(case, number=1).name),
}


@pytest.mark.parametrize(("command", "what"), paired(READERS, CHANGES))
def test_changed_parts(case: Path, command: str, what: str) -> None:
    CHANGES[what](case)
    refused(*COMMANDS[command], cwd=case, names="store/part-0")


ESCAPES = ("../mine.parquet", "/etc/hostname", "", ".", "..", "a/b")


@pytest.mark.parametrize(
    ("command", "spot", "name"), paired(["dump", "verify"], ["part", "types", "shard"], ESCAPES)
)
def test_a_manifest_that_leaves_its_folder(case: Path, command: str, spot: str, name: str) -> None:
    (case / "mine.parquet").write_text("mine")
    path = case / "store" / MANIFEST
    value = json.loads(path.read_text())
    entry = value["parts"][0]
    {"part": entry, "types": entry["types"], "shard": entry["shard"]}[spot]["file"] = name
    path.write_text(json.dumps(value))
    refused(*COMMANDS[command], cwd=case, names=MANIFEST)


FOLDERS = folders("store", {"shards": "task", "a model": "model"})


@pytest.mark.parametrize(("command", "what"), paired([*READERS, "lineage", "register"], FOLDERS))
def test_folders_that_are_no_store(case: Path, command: str, what: str) -> None:
    FOLDERS[what](case / "store")
    refused(*COMMANDS[command], cwd=case, names="store")
