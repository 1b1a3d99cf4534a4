"""Other libraries read the folder of a store as it lies, and its table of tokens, without ours."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset
import pyarrow.parquet
import pytest

from elmo.errors import ElmoError
from elmo.store import FeatureStore
from elmo.store.dump import export_token_table
from elmo.store.manifest import INNER_FOLDER, MANIFEST_PATH

library = pytest.importorskip


def by_duckdb(files: str) -> list[Any]:
    query = f"SELECT sentence_id FROM '{files}' ORDER BY 1"
    return [row[0] for row in library("duckdb").sql(query).fetchall()]


def by_datasets(store: str, *what: str, **where: str) -> list[Any]:
    loaded = library("datasets").load_dataset(*what, cache_dir=f"{store}-cache", **where)
    return list(loaded["train"]["sentence_id"])


READERS: dict[str, Callable[[str], Any]] = {
    "pyarrow.dataset": lambda store: (
        pyarrow.dataset.dataset(store).to_table()["sentence_id"].to_pylist()
    ),
    "pyarrow.parquet": lambda store: pyarrow.parquet.read_table(store)["sentence_id"].to_pylist(),
    "pandas": lambda store: library("pandas").read_parquet(store)["sentence_id"],
    "polars": lambda store: library("polars").read_parquet(f"{store}/*.parquet")["sentence_id"],
    "polars, any folder": lambda store: (
        library("polars").scan_parquet(f"{store}/**/*.parquet").collect()["sentence_id"]
    ),
    "duckdb": lambda store: by_duckdb(f"{store}/*.parquet"),
    "duckdb, any folder": lambda store: by_duckdb(f"{store}/**/*.parquet"),
    "datasets": lambda store: by_datasets(store, store),
    "datasets, Parquet": lambda store: by_datasets(store, "parquet", data_dir=store),
}


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("reader", READERS)
def test_the_folder_is_read_as_it_lies(store: Path, reader: str) -> None:
    assert list(READERS[reader](str(store))) == list(range(40))


@pytest.mark.parametrize("name", ["__elmo/manifest-000001.json", "_manifest-000001.json"])
def test_a_store_of_an_earlier_version_is_refused(store: Path, name: str) -> None:
    (store / MANIFEST_PATH).rename(store / name)
    with pytest.raises(ElmoError, match="store: an earlier version of elmo made this store; make"):
        FeatureStore(store)


def test_a_store_without_its_inner_folder_says_so(store: Path) -> None:
    shutil.rmtree(store / INNER_FOLDER)
    with pytest.raises(ElmoError, match=f"{INNER_FOLDER}/manifest.json: no such file"):
        FeatureStore(store)


TABLE = ["sentence_id", "document_id", "position", "token", "layer_0", "layer_1", "layer_2"]


def of_duckdb(file: str) -> dict[str, list[Any]]:
    answer = library("duckdb").sql(f"SELECT * FROM '{file}'")
    return {
        name: list(values)
        for name, values in zip(answer.columns, zip(*answer.fetchall(), strict=True), strict=True)
    }


TABLES: dict[str, Callable[[str], dict[str, list[Any]]]] = {
    "pandas": lambda file: library("pandas").read_parquet(file).to_dict(orient="list"),
    "polars": lambda file: library("polars").read_parquet(file).to_dict(as_series=False),
    "duckdb": of_duckdb,
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reader", TABLES)
def test_a_table_of_tokens_is_read_without_our_library(
    store: Path, reader: str, dtype: Any
) -> None:
    opened, file = FeatureStore(store), store.parent / "vectors.parquet"
    assert export_token_table(opened, file, dtype=dtype) == opened.counts.tokens
    table = TABLES[reader](str(file))
    assert list(table) == TABLE
    tokens = [(k, i, token) for k in range(40) for i, token in enumerate(opened.tokens(k))]
    rows = zip(table["sentence_id"], table["position"], table["token"], strict=True)
    assert list(rows) == tokens
    for layer, name in enumerate(opened.layers):
        wanted = np.concatenate([opened[k][layer] for k in range(40)])
        np.testing.assert_array_equal(np.stack(table[name]), wanted)  # of a store of float16
