"""A store may be read by several threads, closed, and asked for several sentences at once."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from elmo.errors import ElmoError
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from tests.elmo.conftest import make_store
from tests.programs import python

READ = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from elmo.store import FeatureStore
if sys.argv[1].startswith("memory"):
    import fsspec
    fsspec.filesystem("memory").put(sys.argv[2], "/features", recursive=True)
store, alone = FeatureStore(sys.argv[1]), FeatureStore(sys.argv[2])
wanted = [alone[k] for k in range(len(alone))]
def read(seed):
    order = np.random.default_rng(seed).permutation(len(store))
    assert all(np.array_equal(store[int(k)], wanted[k]) for k in order)
    assert all(store.tokens(int(k)) == alone_tokens[k] for k in order)
alone_tokens = [alone.tokens(k) for k in range(len(alone))]
with ThreadPoolExecutor(4) as threads:
    list(threads.map(read, range(16)))
"""


def descriptors(folder: Path) -> int:
    """How many of this process's descriptors are files of ``folder``: libraries open others."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            count += Path(os.readlink(f"/proc/self/fd/{number}")).is_relative_to(folder)
    return count


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> dict[str, Path]:
    """A store of many small row groups and parts, for each codec."""
    folder = tmp_path_factory.mktemp("data")
    sentences = [["gift", "for", f"w{k}", "a"] for k in range(300)]
    settings = {c: StoreSettings(row_group_tokens=40, codec=c) for c in ("none", "zstd")}
    return {
        codec: make_store(folder / codec, sentences, tiny_model_folder, chosen, shard_sentences=30)
        for codec, chosen in settings.items()
    }


@pytest.mark.parametrize("where", ["none", "zstd", "memory://features"])
def test_several_threads_read_one_store(made: dict[str, Path], where: str) -> None:
    """In a process of its own, which a fault would kill."""
    url = str(made.get(where, where))
    local = str(made["zstd" if where == "zstd" else "none"])
    python(READ, url, local)


def test_a_mapped_part_is_opened_once_and_holds_no_descriptor(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, in whatever order and by however many threads they are read."""
    from elmo.store import feature_store as module

    monkeypatch.setattr(module, "_MAX_OPEN_PARTS", 2)
    opened, part = [], module.Part
    monkeypatch.setattr(module, "Part", lambda *a, **b: (opened.append(a), part(*a, **b))[1])
    store = FeatureStore(made["none"])
    order = np.random.default_rng(0).permutation(len(store)).tolist()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.__getitem__, [0] * 50 + order))
    assert len(opened) == len(store.part_numbers()) > 5
    assert descriptors(made["none"]) == 0


def test_few_parts_are_open_at_a_time(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are: those used longest ago are closed, their descriptors too."""
    monkeypatch.setattr("elmo.store.feature_store._MAX_OPEN_PARTS", 2)
    store = FeatureStore(made["zstd"])
    assert len(store.part_numbers()) > 5
    for k in range(len(store)):
        store[k]
        assert 1 <= descriptors(made["zstd"]) <= 2 * 2 + 1


def test_a_store_that_is_closed_holds_no_file_and_says_so(made: dict[str, Path]) -> None:
    with FeatureStore(made["zstd"]) as store:
        first = store[0]
        assert descriptors(made["zstd"]) > 0
    assert descriptors(made["zstd"]) == 0
    with pytest.raises(ElmoError, match=r"store: is closed; open the store again"):
        store[0]
    assert np.isfinite(first).all()


def test_a_list_of_numbers_gives_their_sentences(made: dict[str, Path]) -> None:
    store = FeatureStore(made["none"])
    for several in ([0, 7, -1], np.array([0, 7, -1]), (0, np.int64(7), -1)):
        for one, k in zip(store[several], (0, 7, -1), strict=True):
            np.testing.assert_array_equal(one, store[k])
    for wrong in ("0", 1.5, None, [0.5]):
        with pytest.raises(TypeError, match="numbers, or a slice or list of them, not"):
            store[wrong]  # type: ignore[index]
    for mask in ([True, False], np.arange(len(store)) < 2, True):
        with pytest.raises(TypeError, match=r"store\[np.flatnonzero\(mask\)\]"):
            store[mask]  # type: ignore[index]
