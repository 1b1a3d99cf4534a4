"""A manifest is trusted in nothing: types, names, sums and versions are checked."""

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
from elmo.store.build import append, build
from elmo.store.layout import Mix
from elmo.store.maintenance import compact, prune, verify
from elmo.store.manifest import _part_bytes

MANIFEST = "__elmo/manifest-000001.json"


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


OUTSIDE = "../part-00000-0123456789ab.parquet"
BROKEN = [
    (["parts", 0, "file"], OUTSIDE),
    (["parts", 0, "file"], "/etc/part-00000-0123456789ab.parquet"),
    (["parts", 0, "file"], "part-mine.parquet"),
    (["parts", 0, "types", "file"], OUTSIDE),
    (["parts", 0, "shards", 0, "file"], "../train.arrow"),
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
    (["sources", 0, "sentences"], 41),
    (["sources", 0, "digest"], None),
    (["version"], 0),
    (["version"], 7),
    (["version"], "1"),
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
    for use in (FeatureStore, verify, prune, lambda s: compact(s, part_tokens=100)):
        with pytest.raises(ElmoError, match=MANIFEST) as error:
            use(store)
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in store.rglob("*")) == before


def test_tokens_that_the_bytes_cannot_hold_are_refused_before_memory_is_taken(store: Path) -> None:
    for keys in (["parts", 0, "tokens"], ["sources", 0, "tokens"], ["counts", "tokens"]):
        manifest = json.loads((store / MANIFEST).read_text())
        number = (
            manifest["parts"][0]["tokens"] if keys[0] == "parts" else manifest["counts"]["tokens"]
        )
        edit(store, keys, number + 10**12)
    with pytest.raises(ElmoError, match="bytes cannot hold the 1000000000020 tokens"):
        FeatureStore(store)[0]


def test_deep_and_huge_json_is_one_line(store: Path) -> None:
    (store / MANIFEST).write_text("[" * 10**5)
    with pytest.raises(ElmoError, match=MANIFEST):
        FeatureStore(store)
    with (store / MANIFEST).open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ElmoError, match="such a file has at most"):
        FeatureStore(store)


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


def test_verify_sees_a_version_that_was_exchanged(
    store: Path, tmp_path: Path, tiny_model_folder: Path
) -> None:
    write_shards(tmp_path / "more", [["more"]])
    append(store, shards=tmp_path / "more", model=tiny_model_folder)
    verify(store)
    edit(store, ["made_by"], "somebody")
    with pytest.raises(ElmoError, match="does not follow version 1, which was altered"):
        verify(store)


def test_prune_leaves_what_no_writer_has_named(store: Path) -> None:
    compact(store, part_tokens=1000)
    others = ["part-mine.txt", "part-00000.parquet", "types-1.parquet", "manifest-1.json", ".part"]
    for name in others:
        (store / name).write_text("mine")
    (store / "part-00000-0123456789ab.parquet").mkdir()
    assert prune(store)
    assert all((store / name).read_text() == "mine" for name in others)
    assert (store / "part-00000-0123456789ab.parquet").is_dir()
    verify(store)


@pytest.mark.parametrize("kind", ["part", "types"])
def test_compact_joins_no_damage_and_leaves_nothing(store: Path, kind: str) -> None:
    path = sorted(store.rglob(f"{kind}-*"))[-1]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    before = sorted(path.name for path in store.rglob("*"))
    with pytest.raises(ElmoError, match=f"{path.name}: altered .* so nothing is joined"):
        compact(store, part_tokens=50)  # the first two are joined before the damage is met
    assert sorted(path.name for path in store.rglob("*")) == before


@pytest.mark.parametrize("tokens", [0, -5])
def test_parts_of_no_tokens_are_refused(store: Path, tokens: int) -> None:
    with pytest.raises(ElmoError, match=f"part_tokens must be 1 or more, found {tokens}"):
        compact(store, part_tokens=tokens)


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


def test_prune_of_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="has no manifest of a store"):
        prune(tmp_path)


@pytest.fixture
def many_shards(tmp_path: Path, tiny_model_folder: Path) -> dict[str, Path]:
    """A corpus of 40 shards, each of which becomes a part."""
    write_shards(tmp_path / "shards", [["a", f"w{k}"] for k in range(40)], shard_sentences=1)
    return {"shards": tmp_path / "shards", "model": tiny_model_folder}


def test_the_size_of_a_manifest_is_known_before(store: Path, tmp_path: Path) -> None:
    """At least what the parts take, and not much more: names and numbers differ in length."""
    part = FeatureStore(store).manifest.parts[0]
    longest = msgspec.structs.replace(
        part,
        file="part-123456789-0123456789ab.parquet",
        split="heldout",
        types=msgspec.structs.replace(
            part.types, file="_types-123456789-0123456789ab.parquet", rows=10**12, bytes=10**15
        ),
        **dict.fromkeys(("sentences", "tokens", "row_groups", "bytes"), 10**15),
        **dict.fromkeys(("first_sentence_id", "last_sentence_id"), 10**15),
        **dict.fromkeys(("first_document_id", "last_document_id"), 10**15),
        shards=part.shards * 50,
    )
    for entry in (part, longest):
        actual = len(json_bytes({"parts": msgspec.to_builtins([entry])}, source=""))
        assert actual <= _part_bytes(entry.shards) < 1.3 * actual


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


def test_an_append_that_nobody_could_read_is_refused_before_work_and_compact_helps(
    many_shards: dict[str, Path], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where such a manifest was written before any was refused."""
    before = sorted(path.name for path in store.rglob("*"))
    with monkeypatch.context() as small:
        small.setattr("elmo.io.records.JSON_LIMIT", 40_000)
        with pytest.raises(ElmoError, match=r"of 44 parts .* join the parts that are there \(elmo"):
            append(store, **many_shards)
    assert sorted(path.name for path in store.rglob("*")) == before
    append(store, **many_shards)
    monkeypatch.setattr("elmo.io.records.JSON_LIMIT", 25_000)
    with pytest.raises(ElmoError, match="takes .* at most 25,000; join its parts: elmo compact"):
        FeatureStore(store)
    with pytest.raises(ElmoError, match="of 24 parts .* join more: raise --part-tokens"):
        compact(store, part_tokens=4)
    compact(store, part_tokens=1000)
    assert len(FeatureStore(store)) == 80 and len(FeatureStore(store).manifest.parts) == 1
    prune(store)
    verify(store)


def test_a_large_corpus_has_larger_parts(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "shards", [["a", f"w{k}"] for k in range(200)])
    monkeypatch.setattr("elmo.store.build.PART_TOKENS", 10)
    for most, parts in ((1000, 40), (16, 16)):
        monkeypatch.setattr("elmo.store.build.MOST_PARTS", most)
        given = {"shards": tmp_path / "shards", "model": tiny_model_folder}
        manifest = build(tmp_path / f"store-{most}", settings=StoreSettings(), **given)
        assert len(manifest.parts) == parts
