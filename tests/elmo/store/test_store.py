"""A store holds what the model says of each sentence, and is the same however it was made."""

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from elmo.data.shards import write_shards
from elmo.errors import ElmoError, Mismatch
from elmo.io.location import Location
from elmo.model.embedder import Embedder
from elmo.settings import StoreSettings
from elmo.store import FeatureStore, writer
from elmo.store.build import build, run_serially
from elmo.store.layout import choose_layers
from elmo.store.manifest import MANIFEST_PATH
from elmo.store.verify import verify
from tests.files import contents, flip

WORDS = ["the", "gift", "한국어", "😀", "x" * 60, *(f"w{k}" for k in range(40))]


def sentences(number: int, seed: int = 0) -> list[list[str]]:
    """Random sentences, some of them blank, and one that is longer than a row group."""
    draw = random.Random(seed)
    found = [draw.choices(WORDS, k=draw.randrange(0, 12)) for _ in range(number)]
    found[number // 2] = draw.choices(WORDS, k=200)
    return found


SENTENCES = sentences(120)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards") / "shards"
    write_shards(folder, SENTENCES, heldout_every=5, shard_sentences=40)
    return folder


@pytest.fixture(scope="module")
def expected(tiny_model_folder: Path) -> list[np.ndarray]:
    return Embedder.load(tiny_model_folder).embed(SENTENCES)


def part(folder: Path, number: int, kind: str = "part") -> Path:
    """A file of the store by the number of its part."""
    entry = FeatureStore(folder).manifests[0].parts[number]
    return folder / (entry.path if kind == "part" else entry.types.path)


def make(out: Path, shards: Path, model: Path, **settings: object) -> FeatureStore:
    chosen = StoreSettings(**{"row_group_tokens": 64, **settings})
    build(out, shards=shards, model=model, settings=chosen, work=out.parent / "runs")
    return FeatureStore(out)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shards: Path, tiny_model_folder: Path) -> Path:
    """A store of all layers in float16: copy it before altering it."""
    out = tmp_path_factory.mktemp("made") / "store"
    make(out, shards, tiny_model_folder)
    return out


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_float32_is_what_embed_gives(
    tmp_path: Path, shards: Path, tiny_model_folder: Path, expected: list[np.ndarray], codec: str
) -> None:
    store = make(tmp_path / "store", shards, tiny_model_folder, dtype="float32", codec=codec)
    assert len(store) == len(SENTENCES)
    for k, vectors in enumerate(expected):
        assert store.tokens(k) == SENTENCES[k]
        assert store[k].shape == vectors.shape
        assert store[k].dtype == np.float32
        np.testing.assert_allclose(store[k], vectors, atol=1e-5)


def test_a_shard_of_many_tokens_becomes_several_parts(
    tmp_path: Path,
    shards: Path,
    made: Path,
    tiny_model_folder: Path,
    expected: list[np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each with its own distinct tokens; one that is lost is made again, the others stay."""
    monkeypatch.setattr("elmo.store.build.PART_TOKENS", 30)
    monkeypatch.setattr("elmo.store.writer.MAX_GROUP_ROWS", 3)
    out = tmp_path / "store"
    store, whole = make(out, shards, tiny_model_folder, dtype="float32"), FeatureStore(made)
    parts, before = store.manifests[0].parts, whole.manifests[0].parts
    assert len(parts) > 4 * len(before)
    assert parts[0].types.rows < before[0].types.rows
    for k, vectors in enumerate(expected):
        assert store.tokens(k) == SENTENCES[k]
        np.testing.assert_allclose(store[k], vectors, atol=1e-5)
    columns = ["sentence_id", "document_id"]
    tables = [pq.read_table(folder, columns=columns).sort_by(columns[0]) for folder in (out, made)]
    assert tables[0].equals(tables[1])
    kept = contents(out)
    verify(out)
    part(out, 3).unlink()
    make(out, shards, tiny_model_folder, dtype="float32")
    assert contents(out) == kept
    monkeypatch.setattr("elmo.store.build.PART_TOKENS", 60)  # some begin where one has begun
    for folder in (out, tmp_path / "fresh"):
        make(folder, shards, tiny_model_folder, dtype="float32")
    assert contents(out) == contents(tmp_path / "fresh")


def test_float16_rounds_each_value_once(made: Path, expected: list[np.ndarray]) -> None:
    store = FeatureStore(made)
    for k, vectors in enumerate(expected):
        np.testing.assert_allclose(store[k], vectors, rtol=2**-11, atol=1e-5)


@pytest.mark.parametrize(
    ("choice", "rows"), [("top", [2]), ("0,2", [0, 2]), ("1", [1]), ("0", [0]), ("all", [0, 1, 2])]
)
def test_only_the_chosen_layers_are_kept(
    tmp_path: Path,
    shards: Path,
    tiny_model_folder: Path,
    expected: list[np.ndarray],
    choice: str,
    rows: list[int],
) -> None:
    store = make(tmp_path / "store", shards, tiny_model_folder, layers=choice, dtype="float32")
    assert store.layers == tuple(f"layer_{row}" for row in rows)
    for k in (0, 3, 60):
        np.testing.assert_allclose(store[k], expected[k][rows], atol=1e-5)


def test_layers_are_read_by_choice(made: Path) -> None:
    store, every = FeatureStore(made, layers=[2, "layer_0"]), FeatureStore(made)
    np.testing.assert_array_equal(store[7], every[7][[2, 0]])
    np.testing.assert_array_equal(every.vectors(7, layers=[1]), every[7][[1]])
    with pytest.raises(ElmoError, match="has no layer_3; it holds layer_0, layer_1, layer_2"):
        FeatureStore(made, layers=[3])


def test_indexing_is_that_of_a_list(made: Path) -> None:
    store = FeatureStore(made)
    np.testing.assert_array_equal(store[-1], store[len(store) - 1])
    for found, k in zip(store[10:30:7], range(10, 30, 7), strict=True):
        np.testing.assert_array_equal(found, store[k])
    assert sum(1 for _ in store) == len(store)
    with pytest.raises(IndexError, match="no sentence 120; it has 120 sentences"):
        store[120]


def test_blocks_hold_every_sentence_once(made: Path) -> None:
    store = FeatureStore(made)
    seen = []
    for block in store.blocks():
        for place, k in enumerate(block.sentence_ids):
            some = block.vectors[:, block.offsets[place] : block.offsets[place + 1]]
            np.testing.assert_array_equal(some, store[int(k)])
            seen.append(int(k))
    assert sorted(seen) == list(range(len(store)))
    assert store.ids("heldout").tolist() == list(range(4, 120, 5))


def test_the_mapped_way_is_taken_and_agrees_with_parquet(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = FeatureStore(made)
    monkeypatch.setattr("elmo.store.reader.ParquetColumns.decode_column", None)
    found = [mapped[k] for k in range(len(mapped))]
    monkeypatch.undo()
    monkeypatch.setattr("elmo.store.reader.ParquetColumns.value_offset", lambda *_: -1)
    slow = FeatureStore(made)
    for k, vectors in enumerate(found):
        np.testing.assert_array_equal(slow[k], vectors)


def test_a_stranger_decodes_it_from_the_schema(made: Path) -> None:
    table = pq.read_table(part(made, 0))
    columns = json.loads(table.schema.metadata[b"elmo.columns"])
    row = table.slice(1, 1).to_pylist()[0]
    dtype, (_, dim) = columns["layer_2"]["dtype"], columns["layer_2"]["shape"]
    vectors = np.frombuffer(row["layer_2"], dtype).reshape(row["length"], dim)
    store = FeatureStore(made)
    np.testing.assert_array_equal(vectors.astype(np.float32), store[row["sentence_id"]][2])
    types = pq.read_table(made / columns["types"]["of"])
    assert types["layer_0"].type == pa.binary(dim // 2 * 2)
    ids = np.frombuffer(row["types"], columns["types"]["dtype"])
    assert types["token"].take(pa.array(ids)).to_pylist() == row["tokens"]
    x = np.stack([np.frombuffer(types["layer_0"][int(i)].as_py(), dtype) for i in ids])
    layer_0 = store[row["sentence_id"]][0]
    np.testing.assert_array_equal(layer_0, np.concatenate([x, x], 1).astype(np.float32))


def test_whole_parts_are_kept_and_broken_ones_made_again(
    tmp_path: Path, made: Path, shards: Path, tiny_model_folder: Path
) -> None:
    wrote: list[int] = []
    types: list[Path] = []

    def stop_after_three(kind, arguments, jobs):
        made = kind(*arguments)
        for job in jobs[:3]:
            yield made(job)
        types.append(arguments[2].local / jobs[2].origin.types_path)
        raise KeyboardInterrupt

    def count(kind, arguments, jobs):
        made = kind(*arguments)
        write = made._write_part
        made._write_part = lambda job: (wrote.append(jobs.index(job)), write(job))[1]
        return map(made, jobs)

    settings = StoreSettings(row_group_tokens=64)
    given = {"shards": shards, "model": tiny_model_folder, "settings": settings}
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", work=tmp_path / "runs", run_jobs=stop_after_three, **given)
    assert not (tmp_path / "store").exists()
    foreign, broken, *_ = sorted((tmp_path / "runs").glob("*/part-*.parquet"))
    shutil.copyfile(broken, foreign)
    broken.write_bytes(broken.read_bytes()[:-9])
    flip(types[0], types[0].stat().st_size // 9)  # a value: most of a small file is its footer
    build(tmp_path / "store", work=tmp_path / "runs", run_jobs=count, **given)
    assert wrote == [0, 1, 2, 3]
    assert contents(tmp_path / "store") == contents(made)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_store_that_lacks_bytes_is_not_written(
    tmp_path: Path, shards: Path, tiny_model_folder: Path, is_local: bool
) -> None:
    out = Location(tmp_path / "store" if is_local else "memory://lacking/store")

    def damage_one(kind: Any, arguments: Any, jobs: Any) -> list[Any]:
        made = list(run_serially(kind, arguments, jobs))
        folder: Location = arguments[2]
        folder.write(made[1].path, folder.read(made[1].path)[:-9])
        return made

    given = {"shards": shards, "model": tiny_model_folder, "settings": StoreSettings()}
    with pytest.raises(ElmoError, match="store.*: truncated or altered"):
        build(out, work=tmp_path / "runs", run_jobs=damage_one, **given)
    assert not out.exists(MANIFEST_PATH)
    build(out, work=tmp_path / "runs", **given)
    verify(out)


def test_another_model_than_the_stores_is_refused(made: Path, tiny_model_folder: Path) -> None:
    FeatureStore(made, model=tiny_model_folder)
    with pytest.raises(Mismatch, match="was made by model .*, not by ffffffffffff…"):
        FeatureStore(made, model="f" * 64)
    with pytest.raises(ElmoError, match="nowhere: no such model folder"):
        FeatureStore(made, model="nowhere")


def test_sentences_that_no_part_or_two_parts_have_are_named(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manifest,) = FeatureStore(made).manifests
    first, *others = manifest.parts
    for parts, said in ((others, "sentence 0 is in no part"), ([first, first], "the first is 0")):
        changed = structs.replace(manifest, parts=tuple(parts))
        monkeypatch.setattr("elmo.store.verify.read_manifest", lambda _, changed=changed: changed)
        with pytest.raises(ElmoError, match=f"{said}$"):
            verify(made)


def test_a_value_that_says_it_has_another_length_is_not_read(tmp_path: Path, made: Path) -> None:
    folder = copy(made, tmp_path)
    store = FeatureStore(made)
    value = store[7][2].astype(np.float16).tobytes()
    (path,) = (p for p in folder.glob("part-*") if value in p.read_bytes())
    flip(path, path.read_bytes().index(value) - 4)
    with pytest.raises(ElmoError, match=f"{path.name}: .*altered"):
        FeatureStore(folder)[7]


@pytest.mark.slow
def test_whatever_byte_is_flipped_verify_says_so(tmp_path: Path, made: Path) -> None:
    folder = copy(made, tmp_path)
    for path in (part(folder, 2), part(folder, 2, "types")):
        raw = path.read_bytes()
        for place in range(0, len(raw), len(raw) // 40):
            flip(path, place)
            with pytest.raises(ElmoError, match=path.name):
                verify(folder)
            path.write_bytes(raw)
    verify(folder)


@pytest.mark.parametrize("settings", [{}, {"dtype": "float32", "codec": "zstd"}])
def test_blank_shards_are_parts_too(
    tmp_path: Path, tiny_model_folder: Path, settings: dict[str, str]
) -> None:
    write_shards(tmp_path / "blank", [[]] * 30 + [["gift"]], shard_sentences=10)
    store = make(tmp_path / "store", tmp_path / "blank", tiny_model_folder, **settings)
    assert [store[k].shape for k in (0, 29, 30)] == [(3, 0, 8), (3, 0, 8), (3, 1, 8)]
    assert store.tokens(12) == []
    assert sum(block.vectors.shape[1] for block in store.blocks()) == 1
    counts = verify(tmp_path / "store").counts
    assert (counts.sentences, counts.tokens, counts.types, counts.parts) == (31, 1, 1, 4)


def test_layers_that_the_model_lacks_are_refused(
    tmp_path: Path, shards: Path, tiny_model_folder: Path
) -> None:
    with pytest.raises(ElmoError, match="layers must be all, top .* from 0 to 2"):
        make(tmp_path / "store", shards, tiny_model_folder, layers="3")
    with pytest.raises(ElmoError, match="twice"):
        choose_layers("1,1", model_layers=3)
    assert not (tmp_path / "store").exists()


def test_a_value_too_large_for_float16_is_refused(
    tmp_path: Path, shards: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Embedder.encode_types
    monkeypatch.setattr(Embedder, "encode_types", lambda *given: encode(*given) * 1e6)
    with pytest.raises(ElmoError, match="does not fit float16; use dtype float32"):
        make(tmp_path / "store", shards, tiny_model_folder)


def test_a_segment_that_cannot_be_written_ends_the_work(
    tmp_path: Path, shards: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the first of several, while the next are computed."""
    written: list[bool] = []
    write = writer._write_segment

    def fail_first(*given: Any) -> None:
        written.append(True)
        if len(written) == 1:
            raise OSError(28, "No space left on device")
        write(*given)

    monkeypatch.setattr("elmo.store.build.SEGMENT_TOKENS", 8)
    monkeypatch.setattr(writer, "_write_segment", fail_first)
    with pytest.raises(ElmoError, match="No space left on device; make room"):
        make(tmp_path / "store", shards, tiny_model_folder)
    assert not (tmp_path / "store").exists()


def test_a_pickled_store_reads_on(made: Path) -> None:
    store = FeatureStore(made)
    first = store[3]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(store))[3], first)


def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))
