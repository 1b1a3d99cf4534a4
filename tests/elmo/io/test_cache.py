"""This machine's copies of what lies at a URL: bounded, the least used go, and none is missed."""

import os
from pathlib import Path

import pytest

from elmo.data.shards import Shards, write_shards
from elmo.errors import BadSettings
from elmo.io.cache import cached_copy
from elmo.io.location import Location
from elmo.io.records import sha256

pytest.importorskip("fsspec")


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Four shards at a URL; the copies lie in `copies`."""
    local = write_shards(tmp_path / "s", [[f"word{k}"] for k in range(40)], shard_sentences=10)
    url = Location(f"memory://{tmp_path.name}")
    for name in ("manifest.json", *(entry.file for entry in local.entries())):
        url.put(name, tmp_path / "s" / name)
    monkeypatch.setenv("ELMO_CACHE", str(tmp_path / "copies"))
    return Shards(url)


def test_copies_take_what_they_may_and_the_least_used_are_removed(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, entries = tmp_path / "copies", shards.entries()
    monkeypatch.setenv("ELMO_CACHE_GB", str(2.5 * max(entry.bytes for entry in entries) / 1e9))
    first, second, third, fourth = entries
    shards.open(first)
    mapped = shards.open(second)
    (copies / "mine.txt").write_text("no copy")
    for number, entry in enumerate((second, first)):  # the first was used after the second
        path = copies / entry.sha256
        os.utime(path, ns=(1000 + number, path.stat().st_mtime_ns))
    shards.open(third)
    assert set(os.listdir(copies)) == {first.sha256, third.sha256, "mine.txt"}
    assert mapped.tokens(0) == ["word10"]  # what is open stays readable
    shards.open(first)  # now it is used last
    shards.open(fourth)
    assert set(os.listdir(copies)) == {first.sha256, fourth.sha256, "mine.txt"}
    assert shards.open(second).tokens(0) == ["word10"]
    monkeypatch.setenv("ELMO_CACHE_GB", "many")
    with pytest.raises(BadSettings, match="ELMO_CACHE_GB must be a number of gigabytes, found 'ma"):
        shards.open(third)


def test_a_copy_that_another_process_removes_is_fetched_again(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elmo.data import shards as module

    (entry, *_) = shards.entries()
    times = []

    def removed(location: Location, file: str, *, sha256: str) -> Path:
        path = cached_copy(location, file, sha256=sha256)
        times.append(path)
        if len(times) == 1:
            path.unlink()
        return path

    monkeypatch.setattr(module, "cached_copy", removed)
    assert shards.open(entry).tokens(0) == ["word0"]
    assert len(times) == 2 and sha256(times[1]) == entry.sha256
