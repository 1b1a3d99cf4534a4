"""Other libraries read the folder of a store as it lies, and its table of tokens, without ours."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elmo.errors import ElmoError
from elmo.store import FeatureStore
from elmo.store.dump import export_token_table
from elmo.store.manifest import INNER_FOLDER, MANIFEST


def pyarrow_dataset(store: str) -> list[Any]:
    from pyarrow import dataset

    return dataset.dataset(store).to_table()["sentence_id"].to_pylist()


def pyarrow_parquet(store: str) -> list[Any]:
    from pyarrow import parquet

    return parquet.read_table(store)["sentence_id"].to_pylist()


def pandas(store: str) -> list[Any]:
    return list(pytest.importorskip("pandas").read_parquet(store)["sentence_id"])


def polars(store: str) -> list[Any]:
    scan = pytest.importorskip("polars").scan_parquet(f"{store}/*.parquet")
    return scan.collect()["sentence_id"].to_list()


def polars_recursive(store: str) -> list[Any]:
    scan = pytest.importorskip("polars").scan_parquet(f"{store}/**/*.parquet")
    return scan.collect()["sentence_id"].to_list()


def duckdb(store: str, files: str = "/*.parquet") -> list[Any]:
    query = f"SELECT sentence_id FROM '{store}{files}' ORDER BY 1"
    return [row[0] for row in pytest.importorskip("duckdb").sql(query).fetchall()]


def duckdb_recursive(store: str) -> list[Any]:
    return duckdb(store, "/**/*.parquet")


def datasets(store: str) -> list[Any]:
    library = pytest.importorskip("datasets")
    cache = f"{store}-cache"
    return list(library.load_dataset(store, cache_dir=cache)["train"]["sentence_id"])


def datasets_parquet(store: str) -> list[Any]:
    library = pytest.importorskip("datasets")
    loaded = library.load_dataset("parquet", data_dir=store, cache_dir=f"{store}-cache")
    return list(loaded["train"]["sentence_id"])


READERS = (pyarrow_dataset, pyarrow_parquet, pandas, polars, polars_recursive, duckdb)
READERS += (duckdb_recursive, datasets, datasets_parquet)


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_the_folder_is_read_as_it_lies(store: Path, reader: Callable[[str], list[Any]]) -> None:
    assert reader(str(store)) == list(range(40))


@pytest.mark.parametrize("name", ["__elmo/manifest-000001.json", "_manifest-000001.json"])
def test_a_store_of_an_earlier_version_is_refused(store: Path, name: str) -> None:
    (store / MANIFEST).rename(store / name)
    with pytest.raises(ElmoError, match="store: an earlier version of elmo made this store; make"):
        FeatureStore(store)


def test_a_store_without_its_inner_folder_says_so(store: Path) -> None:
    shutil.rmtree(store / INNER_FOLDER)
    with pytest.raises(ElmoError, match=f"{INNER_FOLDER}/manifest.json: no such file"):
        FeatureStore(store)


TABLE = ["sentence_id", "document_id", "position", "token", "layer_0", "layer_1", "layer_2"]


def of_pandas(file: str) -> dict[str, list[Any]]:
    return pytest.importorskip("pandas").read_parquet(file).to_dict(orient="list")


def of_polars(file: str) -> dict[str, list[Any]]:
    return pytest.importorskip("polars").read_parquet(file).to_dict(as_series=False)


def of_duckdb(file: str) -> dict[str, list[Any]]:
    answer = pytest.importorskip("duckdb").sql(f"SELECT * FROM '{file}'")
    return {
        name: list(values)
        for name, values in zip(answer.columns, zip(*answer.fetchall(), strict=True), strict=True)
    }


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reader", [of_pandas, of_polars, of_duckdb])
def test_a_table_of_tokens_is_read_without_our_library(
    store: Path, reader: Callable[[str], dict[str, list[Any]]], dtype: Any
) -> None:
    opened, file = FeatureStore(store), store.parent / "vectors.parquet"
    export_token_table(opened, file, dtype=dtype)
    table = reader(str(file))
    assert list(table) == TABLE
    tokens = [(k, i, token) for k in range(40) for i, token in enumerate(opened.tokens(k))]
    rows = zip(table["sentence_id"], table["position"], table["token"], strict=True)
    assert list(rows) == tokens
    for layer, name in enumerate(opened.layers):
        wanted = np.concatenate([opened[k][layer] for k in range(40)])
        np.testing.assert_array_equal(np.stack(table[name]), wanted)  # of a store of float16
