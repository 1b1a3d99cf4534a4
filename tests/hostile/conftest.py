"""A tiny model, shards and a store of two versions, made without training and copied per case."""

import shutil
from pathlib import Path

import pytest

from elmo.shards import write_shards
from elmo.store.build import append, build
from elmo.store.layout import StoreSettings
from tests.elmo.conftest import WHITESPACE, save_tiny_model

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the suite."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.hostile)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy it; write nothing to it."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    folder.mkdir()
    save_tiny_model(folder / "model")
    sentences = [["the", "gift"], ["he", "has", "a", "gift"], ["for", "he"]]
    write_shards(folder / "task", sentences * 3, heldout_every=3, tokenizer=WHITESPACE)
    write_shards(folder / "more", sentences, tokenizer=WHITESPACE)
    settings = StoreSettings(row_group_tokens=64)
    build(folder / "store", shards=folder / "task", model=folder / "model", settings=settings)
    append(folder / "store", shards=folder / "more", model=folder / "model")
    (folder / "in.txt").write_text("the gift\nhe has\n")
    return folder


@pytest.fixture
def case(project: Path, tmp_path: Path) -> Path:
    """A copy of the project."""
    folder = tmp_path / "case"
    shutil.copytree(project, folder, copy_function=shutil.copyfile)
    return folder
