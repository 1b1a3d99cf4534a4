"""Each kind of error, from a cause of its kind; all are an `ElmoError`, and so a `ValueError`."""

import shutil
from pathlib import Path

import pytest

import elmo
from elmo.data.shards import write_shards
from elmo.model.folder import load_model
from elmo.settings import StoreSettings, check_value
from elmo.store.build import build
from elmo.tasks.kinds import task_settings
from tests.elmo.conftest import save_tiny_model


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(elmo.NotFound, match="nowhere: no such model folder"):
        elmo.Embedder.load(tmp_path / "nowhere")
    with pytest.raises(elmo.NotFound, match="nowhere: no such folder"):
        elmo.FeatureStore(tmp_path / "nowhere")


def test_what_is_damaged(tmp_path: Path, tiny_model_folder: Path) -> None:
    model = shutil.copytree(tiny_model_folder, tmp_path / "model")
    words = model / "words.txt"
    words.write_bytes(words.read_bytes()[:-1])
    with pytest.raises(elmo.Damaged, match=r"words\.txt: truncated or altered"):
        load_model(model)
    words.unlink()
    with pytest.raises(elmo.Damaged, match=r"words\.txt: is missing"):
        load_model(model)


def test_what_does_not_belong_together(tmp_path: Path) -> None:
    for seed in (0, 1):
        save_tiny_model(tmp_path / f"model{seed}", seed=seed)
    write_shards(tmp_path / "shards", [["a", "gift"], ["he", "has"]])
    places = {"shards": tmp_path / "shards", "model": tmp_path / "model0"}
    build(tmp_path / "store", settings=StoreSettings(), work=tmp_path / "work", **places)
    with pytest.raises(elmo.Mismatch, match="was made by model"):
        elmo.FeatureStore(tmp_path / "store", model=load_model(tmp_path / "model1").digest)


def test_settings_out_of_range() -> None:
    with pytest.raises(elmo.BadSettings):
        check_value("rows", 0, StoreSettings.__annotations__["row_group_tokens"])
    with pytest.raises(elmo.BadSettings, match="epoch"):
        task_settings("tagging", {"epoch": 3})


def test_all_are_caught_as_one() -> None:
    for kind in (elmo.NotFound, elmo.Damaged, elmo.Mismatch, elmo.BadSettings):
        assert issubclass(kind, elmo.ElmoError) and issubclass(kind, ValueError)
