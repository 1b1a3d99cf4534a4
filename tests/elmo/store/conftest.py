"""A store of forty sentences, some of them blank, in small parts."""

import shutil
from pathlib import Path

import pytest

from elmo.settings import StoreSettings
from tests.elmo.conftest import make_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("made")
    sentences = [["a", f"w{k}", "gift"][: k % 4] for k in range(40)]
    settings = StoreSettings(row_group_tokens=8)
    return make_store(folder, sentences, tiny_model_folder, settings, shard_sentences=10)


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))
