"""Names of pretrained models, and folders that are published."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from elmo.errors import ElmoError
from elmo.model.config import read_config
from elmo.model.embedder import Embedder
from elmo.model.folder import load_model
from elmo.model.pretrained import write_package
from elmo.store import model_digest
from tests.elmo.conftest import save

TEXTS = ["he has a gift", "the gift"]


def test_the_card_says_data_and_perplexities(tiny_model_folder: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model_folder)
    side = {"average": 11.67, "tokens": 1234}
    training = {
        "stage": "finetune",
        "inputs": {"corpus": "ab" * 32},
        "params": {"training": {"epochs": 2}},
        "perplexity": {"before": {"task": {**side, "average": None}}, "after": {"task": side}},
    }
    save(tmp_path / "m", model, training=training)
    digest = write_package(
        tmp_path / "m", tmp_path / "out", name="tiny", licence="apache: 2.0", language="no"
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert (head["license"], head["language"]) == ("apache: 2.0", "no")
    assert digest in card and "2 × 16 cells, projection 4, 20 filters" in card
    assert "| task, after finetune | 11.7 |" in card and "before finetune" not in card
    assert "| corpus | `abab" in card and "| held-out tokens, task | 1,234 |" in card
    assert "| epochs of finetune | 2 |" in card


@pytest.fixture
def installed(
    tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
    """A package of a model, as pip installs it into a folder of its own."""
    about = "Made of [two] novels; not for *verse*."
    digest = write_package(
        tiny_model_folder, tmp_path / "package", name="tiny", licence="CC0-1.0", about=about
    )
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(tmp_path / "package")], check=True)
    monkeypatch.syspath_prepend(str(target))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "package", digest


def test_a_registry_that_is_not_there_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_registry_uri()
    mlflow.set_registry_uri(f"sqlite:///{tmp_path}/mlflow.db")
    try:
        with pytest.raises(ElmoError, match="no registry .*mlflow.db here; go to the project"):
            Embedder.from_pretrained("models:/elmo@champion")
    finally:
        mlflow.set_registry_uri(before)
    assert not list(tmp_path.iterdir())


def test_an_installed_model_is_loaded_by_its_name(
    tiny_model_folder: Path, installed: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, digest = installed
    embedder, original = Embedder.load("tiny"), Embedder.load(tiny_model_folder)
    assert embedder.model.digest == digest != original.model.digest
    for ours, reference in zip(embedder.encode(TEXTS), original.encode(TEXTS), strict=True):
        np.testing.assert_allclose(ours, reference, atol=2e-3)
    assert Embedder.from_pretrained("tiny").model.digest == digest
    assert model_digest("tiny") == digest
    Path("tiny").mkdir()  # a folder that is no model does not hide it
    assert read_config("tiny").digest == digest
    card = (package / "README.md").read_text(encoding="utf-8")
    assert "Made of [two] novels; not for *verse*." in card and digest in card
    assert 'elmo.Embedder.load("tiny")' in card
    with pytest.raises(ElmoError, match=r"models:/elmo/1: .*; pass a model folder"):
        load_model("models:/elmo/1")
    with pytest.raises(ElmoError, match=r"finnish: no such model folder.*\(there are .*tiny\)"):
        load_model("finnish")


def test_weights_in_float16_take_half_the_file(tiny_model_folder: Path, tmp_path: Path) -> None:
    write_package(tiny_model_folder, tmp_path / "package", name="tiny")
    folders = (tmp_path / "package" / "elmo_tiny", tiny_model_folder)
    sizes = [(folder / "weights.safetensors").stat().st_size for folder in folders]
    assert sizes[0] < 0.6 * sizes[1]
    write_package(tiny_model_folder, tmp_path / "package", name="tiny")  # over its own


def test_a_package_replaces_nothing_of_others(tiny_model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(ElmoError, match="choose another"):
        write_package(tiny_model_folder, tmp_path, name="tiny")
    assert (tmp_path / "pyproject.toml").read_text() == "[project]\n"
    for name, version, wrong in (("My Model", "1.0", "name"), ("tiny", "one", "version")):
        with pytest.raises(ElmoError, match=wrong):
            write_package(tiny_model_folder, tmp_path / "new", name=name, version=version)


def test_a_weight_that_float16_can_not_hold_is_refused(
    tiny_model_folder: Path, tmp_path: Path
) -> None:
    model = load_model(tiny_model_folder)
    model.bilm.lstm.weight[0].data[0, 0] = 1e6
    save(tmp_path / "m", model)
    with pytest.raises(ElmoError, match="not finite in float16"):
        write_package(tmp_path / "m", tmp_path / "out", name="tiny")
    assert not (tmp_path / "out").exists()
