"""A store of forty sentences in small parts."""

import shutil
from pathlib import Path

import pytest

from elmo.data.shards import write_shards
from elmo.settings import StoreSettings
from elmo.store.build import build


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("made")
    sentences = [["a", f"w{k}", "gift"][: 1 + k % 3] for k in range(40)]
    write_shards(folder / "shards", sentences, shard_sentences=10)
    given = {"shards": folder / "shards", "model": tiny_model_folder}
    build(folder / "store", settings=StoreSettings(row_group_tokens=8), **given)
    return folder / "store"


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))
