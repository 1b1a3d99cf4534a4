"""A manifest is trusted in nothing: types, names and sums are checked."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.io.records import json_bytes
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.layout import Mix
from elmo.store.manifest import MANIFEST, SourceShard, _part_bytes
from elmo.store.verify import verify


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_shards(folder / "shards", [["a", f"w{k}"] for k in range(40)], shard_sentences=10)
    given = {"shards": folder / "shards", "model": tiny_model_folder}
    build(folder / "store", settings=StoreSettings(row_group_tokens=8), **given)
    return folder / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def edit(store: Path, keys: list[Any], value: Any) -> None:
    """Set (or, with `...`, delete) one key of the manifest."""
    manifest = json.loads((store / MANIFEST).read_text())
    inner = manifest
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    (store / MANIFEST).write_text(json.dumps(manifest))


OUTSIDE = "../part-000000000000-0123456789abcdef.parquet"
BROKEN = [
    (["parts", 0, "file"], OUTSIDE),
    (["parts", 0, "file"], "/etc/part-000000000000-0123456789abcdef.parquet"),
    (["parts", 0, "file"], "part-mine.parquet"),
    (["parts", 0, "types", "file"], OUTSIDE),
    (["parts", 0, "shard", "file"], "../train.arrow"),
    (["parts", 0, "sha256"], "0"),
    (["parts", 0, "tokens"], -1),
    (["parts", 0, "tokens"], 2**60),
    (["parts", 0, "tokens"], True),
    (["parts", 0, "split"], "test"),
    (["parts", 0, "bytes"], ...),
    (["parts"], {}),
    (["parts"], []),
    (["counts", "tokens"], 2704),
    (["counts"], ...),
    (["source", "sentences"], 41),
    (["source", "digest"], None),
    (["schema"], 3),
    (["model"], {}),
    (["model", "digest"], "x"),
    (["layout", "dim"], 2**40),
    (["layout", "dim"], 7),
    (["layout", "model_layers"], 10**6),
    (["layout", "layers"], ["layer_9"]),
    (["layout", "layers"], []),
    (["layout", "layers"], ["../layer_0"]),
    (["layout", "dtype"], "float64"),
    (["layout", "codec"], "lzma"),
    (["layout", "mix"], {"weights": [True, 1, 1], "gamma": 1}),
    (["layout", "row_group_tokens"], 0),
    (["unknown"], 1),
]


@pytest.mark.parametrize(("keys", "value"), BROKEN)
def test_a_manifest_that_cannot_be_is_refused_by_all(
    store: Path, keys: list[Any], value: Any
) -> None:
    edit(store, keys, value)
    before = sorted(path.name for path in store.rglob("*"))
    for use in (FeatureStore, verify):
        with pytest.raises(ElmoError, match=MANIFEST) as error:
            use(store)
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in store.rglob("*")) == before


def test_tokens_that_the_bytes_cannot_hold_are_refused_before_memory_is_taken(store: Path) -> None:
    for keys in (["parts", 0, "tokens"], ["source", "tokens"], ["counts", "tokens"]):
        manifest = json.loads((store / MANIFEST).read_text())
        number = (
            manifest["parts"][0]["tokens"] if keys[0] == "parts" else manifest["counts"]["tokens"]
        )
        edit(store, keys, number + 10**12)
    with pytest.raises(ElmoError, match="bytes cannot hold the 1000000000020 tokens"):
        FeatureStore(store)[0]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("row_groups", 1, "row groups: .*, the manifest says"),
        ("first_document_id", -1, "first document: 0, the manifest says 1"),
        ("last_sentence_id", 1, "last sentence: 9, the manifest says 10"),
    ],
)
def test_verify_counts_everything_again(store: Path, name: str, change: int, said: str) -> None:
    number = json.loads((store / MANIFEST).read_text())["parts"][0][name]
    edit(store, ["parts", 0, name], abs(number + change))
    with pytest.raises(ElmoError, match=said):
        verify(store)


@pytest.mark.parametrize(
    "text",
    [
        '{"weights": [true, false], "gamma": 1}',
        '{"weights": [1, 0], "gamma": true}',
        '{"weights": [], "gamma": 1}',
        '{"weights": [1e999], "gamma": 1}',
        '{"weights": [NaN], "gamma": 1}',
        '{"weights": "1", "gamma": 1}',
        '{"gamma": 1}',
        "[]",
    ],
)
def test_a_mix_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mix.json").write_text(text)
    with pytest.raises(ElmoError, match="mix.json"):
        Mix.load(tmp_path / "mix.json")


@pytest.fixture
def many_shards(tmp_path: Path, tiny_model_folder: Path) -> dict[str, Path]:
    """A corpus of 40 shards, each of which becomes a part."""
    write_shards(tmp_path / "shards", [["a", f"w{k}"] for k in range(40)], shard_sentences=1)
    return {"shards": tmp_path / "shards", "model": tiny_model_folder}


def test_the_size_of_a_manifest_is_known_before(store: Path, tmp_path: Path) -> None:
    """At least what the parts take, and not much more: names and numbers differ in length."""
    part = FeatureStore(store).manifests[0].parts[0]
    names = {"file": "part-1234567890123456-0123456789abcdef.parquet", "split": "heldout"}
    numbers = [name for name, value in msgspec.structs.asdict(part).items() if type(value) is int]
    longest = msgspec.structs.replace(
        part,
        **names,
        **dict.fromkeys(numbers, 10**15),
        types=msgspec.structs.replace(part.types, rows=10**12, bytes=10**15),
        shard=SourceShard(file="s" * 128, sha256=part.sha256),
    )
    for entry in (part, longest):
        actual = len(json_bytes({"parts": msgspec.to_builtins([entry])}, source=""))
        assert actual <= _part_bytes(entry.shard) < 1.3 * actual


def test_a_store_whose_manifest_nobody_could_read_is_refused_before_work(
    many_shards: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.io.records.JSON_LIMIT", 36_000)

    def run(*_: object) -> list[Any]:
        raise AssertionError("work began")

    said = "the manifest of 40 parts would take up to .* bytes.*larger tokenize.shard_bytes"
    with pytest.raises(ElmoError, match=said):
        build(tmp_path / "store", settings=StoreSettings(), run=run, **many_shards)
    assert not (tmp_path / "store").exists()


def test_a_large_corpus_has_larger_parts(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "shards", [["a", f"w{k}"] for k in range(200)])
    monkeypatch.setattr("elmo.store.build.PART_TOKENS", 10)
    for most, parts in ((1000, 40), (16, 10)):
        monkeypatch.setattr("elmo.store.build.MOST_PARTS", most)
        given = {"shards": tmp_path / "shards", "model": tiny_model_folder}
        manifest = build(tmp_path / f"store-{most}", settings=StoreSettings(), **given)
        assert len(manifest.parts) == parts
