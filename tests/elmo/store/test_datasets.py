"""Datasets over a store: each sentence once, whoever reads it; and what leaves for other tools."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader

from elmo.data.manifest import TokenizerEntry
from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.interop.dump_formats import choose_layout
from elmo.io.location import Location
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.datasets import collate, sentence_arrays
from elmo.store.dump import HDF5_LAYOUTS, export_hdf5, export_token_table
from elmo.store.verify import verify
from tests.ports import free_port
from tests.small_disk import small_disk

SENTENCES = 150


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    sentences = [[f"w{draw.randrange(30)}"] * draw.randrange(9) for _ in range(SENTENCES)]
    write_shards(folder / "shards", sentences, heldout_every=3, shard_sentences=40)
    build(
        folder / "store",
        shards=folder / "shards",
        model=tiny_model_folder,
        settings=StoreSettings(row_group_tokens=30),
    )
    return folder / "store"


@pytest.fixture
def store(made: Path) -> FeatureStore:
    return FeatureStore(made)


def loaded(dataset: torch.utils.data.Dataset, workers: int) -> list[int]:
    loader = DataLoader(
        dataset,
        batch_size=8,
        num_workers=workers,
        collate_fn=collate,
        multiprocessing_context="fork" if workers else None,
    )
    return [k for batch in loader for k in batch["sentence_ids"].tolist()]


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
    loader = DataLoader(
        store,
        batch_size=8,
        num_workers=workers,
        collate_fn=collated,
        multiprocessing_context="fork" if workers else None,
    )
    seen = 0
    for batch in loader:
        wanted = collate(sentence_arrays(store, batch["sentence_ids"].tolist()))
        assert sorted(batch) == sorted(wanted)
        assert all(torch.equal(batch[name], wanted[name]) for name in wanted)
        seen += len(batch["sentence_ids"])
    assert seen == SENTENCES
    assert sorted(collate([store[0], store[1]])) == ["mask", "vectors"]


@pytest.mark.parametrize(
    ("name", "layout", "chosen"),
    [
        ("a.parquet", None, "lists"),
        ("a.hdf5", None, "all"),
        ("a.h5", "top", "top"),
        ("a", "average", "average"),
        ("a.csv", None, None),
        ("a", None, None),
        ("a.parquet", "all", None),
        ("a.h5", "lists", None),
    ],
)
def test_a_name_has_an_ending_of_what_is_written(
    name: str, layout: str | None, chosen: str | None
) -> None:
    if chosen is None:
        with pytest.raises(ElmoError, match=f"^{name}: "):
            choose_layout(name, layout)
    else:
        assert choose_layout(name, layout) == chosen


def test_a_batch_of_sentences_without_tokens(store: FeatureStore) -> None:
    empty = [k for k in range(SENTENCES) if not store.tokens(k)][:3]
    batch = collate(store.__getitems__(empty))
    assert batch["vectors"].shape == (3, 3, 0, 8)
    assert batch["mask"].shape == (3, 0)


def test_blank_sentences_leave_only_where_they_were_lines(
    store: FeatureStore, tmp_path: Path
) -> None:
    blank = sum(not store.tokens(k) for k in range(SENTENCES))
    assert blank
    (manifest,) = store.manifests
    words = TokenizerEntry(name="unicode", sentences="split")
    store.manifests = [replace(manifest, source=replace(manifest.source, tokenizer=words))]
    h5py = pytest.importorskip("h5py")
    assert export_hdf5(store, tmp_path / "dump") == SENTENCES - blank
    with h5py.File(tmp_path / "dump") as file:
        assert all(file[name].shape[1] for name in file if name.isdecimal())


FULL = """
import resource, sys
from pathlib import Path
from typing import Any
import numpy as np
from elmo.errors import ElmoError
from elmo.store.dump import write_vectors_hdf5
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
vectors = np.random.default_rng(0).random((3, 20, 64), np.float32)
try:
    write_vectors_hdf5(Path(sys.argv[1]), ((["a"] * 20, vectors) for _ in range(200)))
except ElmoError as error:
    sys.exit(f"error: {error}")
"""


def dump_to(path: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """Write a dump of 3 MB in a process of its own, which a failing disk may crash."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", FULL, str(path), str(limit)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("limit", [1000, 100_000, 3_000_000])
def test_a_dump_that_meets_a_limit_is_one_line(tmp_path: Path, limit: int) -> None:
    pytest.importorskip("h5py")
    done = dump_to(tmp_path / "dump.hdf5", limit)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "dump.hdf5: File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dump_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    with small_disk(tmp_path / "disk", "512k") as disk:
        done = dump_to(disk / "dump.hdf5", 0)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "dump.hdf5: No space left on device" in done.stderr
        assert list(disk.iterdir()) == []


def test_list_columns_hold_one_row_per_token(store: FeatureStore, tmp_path: Path) -> None:
    written = export_token_table(store, tmp_path / "lists.parquet")
    table = pq.read_table(tmp_path / "lists.parquet").sort_by(
        [("sentence_id", "ascending"), ("position", "ascending")]
    )
    assert len(table) == written == store.counts.tokens
    assert table["token"].to_pylist() == [t for k in range(SENTENCES) for t in store.tokens(k)]
    found = np.stack(table["layer_2"].to_pylist()).astype(np.float32)
    np.testing.assert_array_equal(found, np.concatenate([store[k][2] for k in range(SENTENCES)]))


def test_dumps_are_those_of_2018(store: FeatureStore, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for layout in HDF5_LAYOUTS:
        assert export_hdf5(store, tmp_path / layout, layout=layout) == SENTENCES
    picks = {"top": lambda v: v[-1], "average": lambda v: v.mean(0)}
    for layout in HDF5_LAYOUTS:
        with h5py.File(tmp_path / layout) as file:
            for k in (0, 1, 7, 149):
                wanted = picks.get(layout, lambda v: v)(store[k])
                np.testing.assert_array_equal(file[str(k)][()], wanted)
            if layout == "bilm-tf":
                assert sorted(file, key=int) == [str(k) for k in range(SENTENCES)]
            else:
                places = json.loads(file["sentence_to_index"][0])
                assert all(" ".join(store.tokens(int(k))) == t for t, k in places.items())


def test_any_fsspec_url_is_read(made: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(made), "/features", recursive=True)
    same(FeatureStore("memory://features", checked=True), FeatureStore(made))
    name = FeatureStore(made).manifests[0].parts[1].file
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
        embedder._write = None
        return map(embedder, jobs)

    for number, previous in enumerate((location, made)):
        again = Location(f"s3://stores/again-{number}", s3)
        options = {"settings": StoreSettings(row_group_tokens=30), "previous_store": previous}
        assert build(again, run=take_all, **options, **given).digest == local.digest
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


def test_an_unknown_layout_of_a_dump_is_refused(store: FeatureStore, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="layout must be one of bilm-tf, all, top, average"):
        export_hdf5(store, tmp_path / "dump", layout="both")
