"""Each kind of error, from a cause of its kind; all are an `ElmoError`, and so a `ValueError`."""

import shutil
from pathlib import Path

import pytest

import elmo
from elmo.model.folder import load_model
from elmo.settings import StoreSettings, check_value
from elmo.tasks.kinds import task_settings


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


def test_settings_out_of_range() -> None:
    with pytest.raises(elmo.BadSettings):
        check_value("rows", 0, StoreSettings.__annotations__["row_group_tokens"])
    with pytest.raises(elmo.BadSettings, match="epoch"):
        task_settings("tagging", {"epoch": 3})


def test_all_are_caught_as_one() -> None:
    for kind in (elmo.NotFound, elmo.Damaged, elmo.Mismatch, elmo.BadSettings):
        assert issubclass(kind, elmo.ElmoError) and issubclass(kind, ValueError)
