"""The registry: once for each content, with its lineage, and anew where it was lost."""

from pathlib import Path

import pytest

from elmo.checkpoint import load_model
from elmo.files import read_json
from elmo.shards import write_shards
from elmo.store_build import build
from elmo.store_layout import Settings
from pipeline import register, tracking
from pipeline.params import Register
from tests.elmo.conftest import save_tiny_model

PARAMS = Register(name="tiny", alias="champion")


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/one.db")
    monkeypatch.setenv("ELMO_COMPILE", "0")
    save_tiny_model(tmp_path / "model")
    write_shards(tmp_path / "shards", [["a", "gift"], ["he", "has"]])
    build(
        tmp_path / "store", shards=tmp_path / "shards", model=tmp_path / "model",
        settings=Settings(), work=tmp_path / "work",
    )  # fmt: skip
    return tmp_path


def run(inputs: Path) -> dict:
    return register.run(
        inputs / "model", inputs / "store", inputs / "registered.json", PARAMS,
        general=inputs / "shards", task=inputs / "shards",
    )  # fmt: skip


def test_the_same_content_is_registered_once(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(inputs)["version"] == 1
    first = (inputs / "registered.json").read_bytes()
    assert run(inputs)["version"] == 1
    assert (inputs / "registered.json").read_bytes() == first
    (version,) = tracking.versions("tiny")
    digest = load_model(inputs / "model").digest
    assert (
        version["model_digest"] == digest == read_json(inputs / "registered.json")["model_digest"]
    )
    assert {"corpus", "task", "vocabulary", "training_run"} <= version.keys()
    assert [key for key in version if key.startswith("store.")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{inputs}/two.db")
    assert run(inputs)["version"] == 1, "an empty registry gets the model anew"
    assert len(tracking.versions("tiny")) == 1
