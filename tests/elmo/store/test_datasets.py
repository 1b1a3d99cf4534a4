"""Datasets over a store: each sentence once, whoever reads it; and what leaves for other tools."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from torch.utils.data import DataLoader

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build, find_published_store
from elmo.store.datasets import collate, sentence_arrays
from elmo.store.verify import verify
from tests.elmo.conftest import make_store
from tests.ports import free_port

SENTENCES = 150


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    sentences = [[f"w{draw.randrange(30)}"] * draw.randrange(9) for _ in range(SENTENCES)]
    settings, cut = StoreSettings(row_group_tokens=30), {"heldout_every": 3, "shard_sentences": 40}
    return make_store(folder, sentences, tiny_model_folder, settings, **cut)


@pytest.fixture
def store(made: Path) -> FeatureStore:
    return FeatureStore(made)


def batches(dataset: Any, workers: int, collate: Any = collate) -> DataLoader:
    how = "fork" if workers else None
    options = {"num_workers": workers, "collate_fn": collate, "multiprocessing_context": how}
    return DataLoader(dataset, batch_size=8, **options)


def loaded(dataset: torch.utils.data.Dataset, workers: int) -> list[int]:
    return [k for batch in batches(dataset, workers) for k in batch["sentence_ids"].tolist()]


def test_batches_are_padded_and_masked(store: FeatureStore) -> None:
    batch = collate(sentence_arrays(store, [4, 0, 9]))
    assert batch["sentence_ids"].tolist() == [4, 0, 9]
    for row, k in enumerate([4, 0, 9]):
        tokens = len(store.tokens(k))
        assert batch["mask"][row].tolist() == [t < tokens for t in range(batch["mask"].shape[1])]
        np.testing.assert_array_equal(batch["vectors"][row, :, :tokens].numpy(), store[k])
        assert not batch["vectors"][row, :, tokens:].any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_of_a_store_keeps_its_order(store: FeatureStore, workers: int) -> None:
    ids = [*range(SENTENCES - 1, 0, -2)]
    assert loaded(torch.utils.data.Subset(store, ids), workers) == ids


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collated", [None, collate])
def test_a_store_is_a_dataset_itself(store: FeatureStore, workers: int, collated: object) -> None:
    seen = 0
    for batch in batches(store, workers, collated):
        wanted = collate(sentence_arrays(store, batch["sentence_ids"].tolist()))
        assert sorted(batch) == sorted(wanted)
        assert all(torch.equal(batch[name], wanted[name]) for name in wanted)
        seen += len(batch["sentence_ids"])
    assert seen == SENTENCES
    assert sorted(collate([store[0], store[1]])) == ["mask", "vectors"]


def test_a_batch_of_sentences_without_tokens(store: FeatureStore) -> None:
    empty = [k for k in range(SENTENCES) if not store.tokens(k)][:3]
    batch = collate(store.__getitems__(empty))
    assert batch["vectors"].shape == (3, 3, 0, 8)
    assert batch["mask"].shape == (3, 0)


def test_any_fsspec_url_is_read(made: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(made), "/features", recursive=True)
    same(FeatureStore("memory://features", checked=True), FeatureStore(made))
    manifest = FeatureStore(made).manifests[0]
    other = structs.replace(manifest, parts=())
    for found, names in ((manifest, []), (other, [part.file for part in manifest.parts])):
        with pytest.raises(ElmoError, match="another store exists"):
            location = Location("memory://features")
            find_published_store(location, {*names}, lambda found=found, **_: found, replace=False)
    name = manifest.parts[1].file
    memory.rm(f"/features/{name}")
    with pytest.raises(ElmoError, match=f"memory://features/{name}: is missing"):
        FeatureStore("memory://features").ids()


@pytest.fixture
def s3() -> Iterator[dict[str, object]]:
    """The options of a bucket on a server of our own."""
    server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    port = free_port()
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=port)
    running.start()
    yield {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
    running.stop()


@pytest.mark.slow
def test_a_store_lives_on_s3_as_on_a_disk(
    made: Path, s3: dict[str, object], tiny_model_folder: Path
) -> None:
    import s3fs

    s3fs.S3FileSystem(**s3, skip_instance_cache=True).mkdir("stores")
    location = Location("s3://stores/features", s3)
    given = {"shards": made.parent / "shards", "model": tiny_model_folder}
    build(location, settings=StoreSettings(row_group_tokens=30), **given)
    remote, local = FeatureStore(location), FeatureStore(made)
    assert remote.digest == local.digest
    same(remote, local)
    assert loaded(remote, workers=2) == list(range(SENTENCES))  # forked while its files are open
    assert verify(location).digest == local.digest
    assert build(location, settings=StoreSettings(row_group_tokens=30), **given) == verify(location)

    def take_all(kind: Any, arguments: Any, jobs: Any) -> Any:
        embedder = kind(*arguments)
        embedder._write_part = None
        return map(embedder, jobs)

    for number, previous in enumerate((location, made)):
        again = Location(f"s3://stores/again-{number}", s3)
        options = {"settings": StoreSettings(row_group_tokens=30), "previous_store": previous}
        assert build(again, run_jobs=take_all, **options, **given).digest == local.digest
        same(FeatureStore(again, checked=True), local)
    with pytest.raises(ElmoError, match="another store exists"):
        build(location, settings=StoreSettings(row_group_tokens=99), **given)
    with pytest.raises(ElmoError, match="stores/other: contains mine.txt, which"):
        Location("s3://stores/other", s3).write("mine.txt", b"years of work")
        build(Location("s3://stores/other", s3), settings=StoreSettings(), **given)


def same(remote: FeatureStore, local: FeatureStore) -> None:
    assert len(remote) == len(local)
    for k in range(0, len(local), 11):
        assert remote.tokens(k) == local.tokens(k)
        np.testing.assert_array_equal(remote[k], local[k])
