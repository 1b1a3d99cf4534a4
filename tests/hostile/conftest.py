"""A tiny project of all that stages read, made without training and copied per case."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from elmo.data.characters import Characters
from elmo.data.shards import write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.settings import StoreSettings
from elmo.store.build import build
from tests.elmo.conftest import TINY, WHITESPACE, WORDS, save_tiny_model
from tests.elmo.run_job import TRAINING
from tests.pipeline import here
from tests.pipeline.command_line import ROOT

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are of the suite, which takes minutes."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.hostile)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy it; write nothing to it."""
    folder = tmp_path_factory.mktemp("hostile") / "project"
    folder.mkdir()
    save_tiny_model(folder / "model")
    sentences = [["the", "gift"], ["he", "has", "a", "gift"], ["for", "he"]]
    task = {"heldout_every": 3, "shard_sentences": 3, "tokenizer": WHITESPACE}
    write_shards(folder / "task", sentences * 3, **task)
    settings = StoreSettings(row_group_tokens=64)
    build(folder / "store", shards=folder / "task", model=folder / "model", settings=settings)
    (folder / "vocab").mkdir()
    Vocabulary(WORDS, [9, 9, 1, *[3] * (len(WORDS) - 3)]).save(folder / "vocab")
    Characters().save(folder / "vocab" / "characters.json")
    (folder / "in.txt").write_text("the gift\nhe has\n")
    (folder / "text.txt").write_text("".join(f"he has gift {k}\n" for k in range(40)))
    (folder / "params.yaml").write_text(yaml.safe_dump(settings_of_all()), encoding="utf-8")
    return folder


def settings_of_all() -> dict[str, Any]:
    """Settings with which each stage takes a moment."""
    value = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    network = {name: one for name, one in asdict(TINY).items() if name != "input_words"}
    training = asdict(TRAINING) | {"rows": 2, "window": 4, "samples": 4, "epochs": 1}
    value["corpus"] |= {"general": ["text.txt"], "domain": ["text.txt"]}
    value["tokenize"] |= {"tokenizer": "whitespace", "sentences": "line", "heldout": 0.4}
    value["tokenize"]["documents"] = "line"
    value["vocab"]["min_count"] = 1
    value["pretrain"] |= {"network": network, "training": training}
    value["finetune"] |= {"training": training, "new_words": 1}
    return json.loads(json.dumps(value))


@pytest.fixture
def case(project: Path, tmp_path: Path) -> Path:
    """A copy of the project."""
    folder = tmp_path / "case"
    shutil.copytree(project, folder, copy_function=shutil.copyfile)
    return folder


@pytest.fixture
def task_case(case: Path) -> Path:
    """A project with a task."""
    settings = yaml.safe_load((case / "params.yaml").read_text())
    files = {split: f"{split}.conll" for split in ("train", "dev", "test")}
    small = {"epochs": 1, "hidden": 4, "characters": 0, "word_dim": 4, "min_count": 1}
    task = {"kind": "tagging", **files, "format": "", "columns": "", "scheme": "", "seeds": 1}
    settings["tasks"] = {"mine": {**task, "baseline": False, "settings": small}}
    (case / "params.yaml").write_text(yaml.safe_dump(settings))
    for k, file in enumerate(files.values()):
        (case / file).write_text("the\tO\ngift\tB-X\n" + "he\tO\n" * k)
    return case


@pytest.fixture(scope="session")
def database(empty_database: Path) -> Path:
    """An MLflow database that cases share."""
    return Path(shutil.copy(empty_database, empty_database.with_name("mlflow.db")))


@pytest.fixture
def tracked(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to a database beside the project, which is shared by the cases."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """What actors do is done in this process, one item after another."""
    for name in ("map_actors", "map_tasks"):
        monkeypatch.setattr(f"pipeline.cluster.workers.{name}", getattr(here, name))
