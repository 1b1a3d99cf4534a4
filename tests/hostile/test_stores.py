"""Stores that are not as their manifest says, and manifests that name what is not theirs."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.io.records import sha256
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, listing, refused
from tests.pipeline.command_line import elmo

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
INNER = "__elmo"  # the folder of a store's manifests
READERS = ("verify", "compact", "dump", "dump lists", "neighbors")


def part(case: Path, prefix: str = "part-00000") -> Path:
    (path,) = (case / "store").rglob(f"{prefix}-*")
    return path


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("kind", ["part-00000", "types-00001"])
@pytest.mark.parametrize("command", [*READERS, "append"])
def test_damaged_parts(case: Path, command: str, kind: str, what: str) -> None:
    path = part(case, kind)
    DAMAGE[what](path)
    refused(*COMMANDS[command], cwd=case, names=path.name)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("command", READERS)
def test_a_flipped_bit(case: Path, command: str, seed: int) -> None:
    draw = random.Random(seed)
    # The first and the third part are what compact joins.
    path = part(case, draw.choice(["part-00000", "part-00002", "types-00000"]))
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)
    refused(*COMMANDS[command], cwd=case, names=path.name)


def exchanged(case: Path) -> None:
    one, two = part(case, "part-00000"), part(case, "part-00001")
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
    "types for a part": lambda case: shutil.copyfile(part(case, "types-00000"), part(case)),
    "a link to another part": lambda case: link(part(case), part(case, "part-00001").name),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("command", READERS)
def test_changed_parts(case: Path, command: str, what: str) -> None:
    CHANGES[what](case)
    refused(*COMMANDS[command], cwd=case, names="store/part-0000")


ESCAPES = ("../mine.parquet", "/etc/hostname", "part-mine.txt", "", ".", "..", "a/b", "a\0b")


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("spot", ["part", "types", "shard"])
@pytest.mark.parametrize("command", ["prune", "compact", "verify"])
def test_a_manifest_that_leaves_its_folder(case: Path, command: str, spot: str, name: str) -> None:
    (case / "mine.parquet").write_text("mine")
    (case / "store" / "part-mine.txt").write_text("mine")
    if (spot, name) == ("shard", "part-mine.txt"):
        pytest.skip("a shard may have that name")
    path = case / "store" / INNER / "manifest-000002.json"
    value = json.loads(path.read_text())
    entry = value["parts"][0]
    {"part": entry, "types": entry["types"], "shard": entry["shards"][0]}[spot]["file"] = name
    path.write_text(json.dumps(value))
    refused(*COMMANDS[command], cwd=case, names="__elmo/manifest-000002.json")


def test_prune_leaves_what_is_not_its_own(case: Path) -> None:
    """Files of others, even with names that nearly are those of parts, folders and links."""
    store = case / "store"
    (store / "part-mine.txt").write_text("mine")
    (store / "part-00000-mine.parquet").write_text("mine")
    (store / "part-00099-0123456789ab.parquet").mkdir()
    (store / ".hidden").write_text("mine")
    (store / "link.parquet").symlink_to("../model/config.json")
    before = listing(store)
    assert elmo("prune", "store", cwd=case)[0] == 0
    after = listing(store)
    gone = set(before) - set(after)
    assert gone == {"__elmo/manifest-000001.json"}
    assert all(after[name] == before[name] for name in after)


VERSIONS: dict[str, Callable[[Path], object]] = {
    "the first is damaged": lambda store: (store / INNER / "manifest-000001.json").write_text("{}"),
    "the first is a folder": lambda store: (
        (store / INNER / "manifest-000001.json").unlink(),
        (store / INNER / "manifest-000001.json").mkdir(),
    ),
    "a later one that is the first": lambda store: shutil.copyfile(
        store / INNER / "manifest-000001.json", store / INNER / "manifest-000003.json"
    ),
    "a later one that is empty": lambda store: (store / INNER / "manifest-000003.json").touch(),
    "a later one that is a folder": lambda store: (store / INNER / "manifest-000003.json").mkdir(),
    "a later one that is a pipe": lambda store: os.mkfifo(store / INNER / "manifest-000003.json"),
    "a later one that leads nowhere": lambda store: (
        store / INNER / "manifest-000003.json"
    ).symlink_to("nowhere"),
}


@pytest.mark.parametrize("what", VERSIONS)
@pytest.mark.parametrize("command", ["verify", "prune"])
def test_versions_that_are_none(case: Path, command: str, what: str) -> None:
    VERSIONS[what](case / "store")
    refused(*COMMANDS[command], cwd=case, names="store/__elmo/manifest-0000")


@pytest.mark.parametrize("what", [name for name in VERSIONS if name.startswith("a later")])
@pytest.mark.parametrize("command", [*READERS, "append", "lineage", "register"])
def test_an_older_version_is_not_read_instead(case: Path, command: str, what: str) -> None:
    VERSIONS[what](case / "store")
    refused(*COMMANDS[command], cwd=case, names="store/__elmo/manifest-000003.json")


def test_a_part_of_another_store_signed_in(case: Path) -> None:
    """Its bytes agree with the manifest, its fingerprint does not."""
    path = case / "store" / INNER / "manifest-000002.json"
    value = json.loads(path.read_text())
    one, two = value["parts"][:2]
    shutil.copyfile(case / "store" / two["file"], case / "store" / one["file"])
    one["bytes"] = two["bytes"]
    one["sha256"] = sha256(case / "store" / one["file"])
    value["counts"]["bytes"] = sum(p["bytes"] + p["types"]["bytes"] for p in value["parts"])
    path.write_text(json.dumps(value))
    refused("verify", "store", cwd=case, names=one["file"])


LAYOUTS = {"int8": {"dtype": "int8"}, "float32": {"dtype": "float32"}, "half": {"dim": 2}}


@pytest.mark.parametrize("what", LAYOUTS)
@pytest.mark.parametrize("command", [*READERS, "append"])
def test_a_layout_that_is_not_the_parts(case: Path, command: str, what: str) -> None:
    path = case / "store" / INNER / "manifest-000002.json"
    value = json.loads(path.read_text())
    value["layout"] |= LAYOUTS[what]
    path.write_text(json.dumps(value))
    refused(*COMMANDS[command], cwd=case, names="store/")


@pytest.mark.parametrize("command", ["verify", "compact", "append"])
def test_a_layout_with_an_unknown_key(case: Path, command: str) -> None:
    path = case / "store" / INNER / "manifest-000002.json"
    value = json.loads(path.read_text())
    value["layout"]["zz"] = 1
    path.write_text(json.dumps(value))
    refused(*COMMANDS[command], cwd=case, names="__elmo/manifest-000002.json: layout: ")


FOLDERS = folders("store", {"shards": "task", "a model": "model"})


@pytest.mark.parametrize("what", FOLDERS)
@pytest.mark.parametrize("command", [*READERS, "append", "prune", "lineage", "register"])
def test_folders_that_are_no_store(case: Path, command: str, what: str) -> None:
    FOLDERS[what](case / "store")
    refused(*COMMANDS[command], cwd=case, names="store")


def test_an_append_that_was_published_is_done_again_without_a_change(case: Path) -> None:
    """As after an interrupt too late to stop it; sentences of an older version are refused."""
    words = COMMANDS["append"]
    assert elmo(*words, cwd=case)[0] == 0
    before = listing(case / "store")
    code, _, error = elmo(*words, cwd=case)
    assert code == 0 and "its newest version has the sentences of new already" in error
    assert listing(case / "store") == before
    refused("append", "store", "more", "model", cwd=case, names="holds the sentences of more")
    refused("append", "store", "task", "model", cwd=case, names="holds the sentences of task")
