"""What a manifest must be; how many parts a store has."""

import json
from pathlib import Path
from typing import Any

import pytest

from elmo.data.shards import write_shards
from elmo.errors import ElmoError
from elmo.settings import StoreSettings
from elmo.store import FeatureStore
from elmo.store.build import build
from elmo.store.manifest import MANIFEST_PATH
from elmo.store.verify import verify


def edit(store: Path, keys: list[Any], value: Any) -> None:
    """Set (or, with `...`, delete) one key of the manifest."""
    manifest = json.loads((store / MANIFEST_PATH).read_text())
    inner = manifest
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    (store / MANIFEST_PATH).write_text(json.dumps(manifest))


OUTSIDE = "../part-000000000000-0123456789abcdef.parquet"
BROKEN = [
    (["parts", 0, "file"], OUTSIDE),
    (["parts", 0, "file"], "part-mine.parquet"),
    (["parts", 0, "types", "file"], OUTSIDE),
    (["parts", 0, "shard", "file"], "../train.arrow"),
    (["parts", 0, "sha256"], "0"),
    (["parts", 0, "tokens"], -1),
    (["parts", 0, "tokens"], 2**60),
    (["parts", 0, "split"], "test"),
    (["parts", 0, "bytes"], ...),
    (["parts"], {}),
    (["counts"], ...),
    (["schema"], 3),
    (["model", "digest"], "x"),
    (["layout", "dim"], 2**40),
    (["layout", "dim"], 7),
    (["layout", "layers"], ["layer_9"]),
    (["layout", "dtype"], "float64"),
    (["layout", "codec"], "lzma"),
    (["layout", "mix"], {"weights": [True, 1, 1], "gamma": 1}),
    (["unknown"], 1),
]


@pytest.mark.parametrize(("keys", "value"), BROKEN)
def test_a_manifest_that_cannot_be_is_refused_by_all(
    store: Path, keys: list[Any], value: Any
) -> None:
    edit(store, keys, value)
    before = sorted(path.name for path in store.rglob("*"))
    for use in (FeatureStore, verify):
        with pytest.raises(ElmoError, match=MANIFEST_PATH) as error:
            use(store)
        assert "\n" not in str(error.value)
    assert sorted(path.name for path in store.rglob("*")) == before


def test_a_large_corpus_has_larger_parts(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "shards", [["a", f"w{k}"] for k in range(200)])
    monkeypatch.setattr("elmo.store.build.PART_TOKENS", 10)
    for most, parts in ((1000, 40), (16, 10)):
        monkeypatch.setattr("elmo.store.build.MAX_PARTS", most)
        given = {"shards": tmp_path / "shards", "model": tiny_model_folder}
        manifest = build(tmp_path / f"store-{most}", settings=StoreSettings(), **given)
        assert len(manifest.parts) == parts
