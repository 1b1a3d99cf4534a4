"""The whole `dvc repro` on a tiny corpus with tiny params, and what a team does with its result."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from elmo.model.embedder import Embedder
from elmo.store import FeatureStore
from pipeline.stages import STAGES as NAMES
from pipeline.stages import load_stage
from tests import programs
from tests.cluster.projects import shrink, text

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.ray, pytest.mark.timeout(3600)]  # minutes on a busy machine
STAGES = [
    "corpus",
    "tokenize@general",
    "tokenize@domain",
    "vocab",
    "pretrain",
    "finetune",
    "features",
    "register",
    "labels",
    "tasks@animals",
    "report",
]
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]


def animals(shift: int) -> str:
    """Tagged lines of the text."""
    lines = [line.split() for line in text(shift, 4).splitlines() if line]
    tags = {"cat": "B-ANIMAL", "dog": "B-ANIMAL"}
    return "\n".join("".join(f"{w}\t{tags.get(w, 'O')}\n" for w in line) for line in lines)


def tiny_params(folder: Path, shard_bytes: int) -> dict:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["corpus"] |= {"general": [str(folder / "g.txt")], "domain": [str(folder / "t.txt")]}
    shrink(params, shard_bytes=shard_bytes)
    params["report"]["neighbors_of"] = ["the [cat] sat"]
    params["labels"] |= {"package": "click"}
    task = params["tasks"].pop("code")
    task |= {name: str(folder / f"{name}.conll") for name in ("train", "dev", "test")}
    task |= {"seeds": 1, "settings": {"epochs": 2, "hidden": 8, "characters": 0}}
    params["tasks"]["animals"] = task
    return params


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with a corpus of its own, all stages run once."""
    folder = new_project(tmp_path_factory.mktemp("project"))
    done = call(folder, "dvc", "repro")
    assert [s for s in STAGES if f"Running stage '{s}'" in done] == STAGES
    for command in (["add", "."], ["commit", "-qm", "done"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def new_project(folder: Path, shard_bytes: int = 4096) -> Path:
    """A copy of the project with a corpus of its own."""
    for name in ("elmo", "pipeline"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "elmo_pipeline").symlink_to("pipeline")
    for name in ("dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / ".dvc").mkdir()
    shutil.copy(ROOT / ".dvc" / "config", folder / ".dvc" / "config")
    (folder / "g.txt").write_text(text(1, 120))
    (folder / "t.txt").write_text(text(2, 80))
    for shift, name in enumerate(("train", "dev", "test")):
        (folder / f"{name}.conll").write_text(animals(shift))
    (folder / "params.yaml").write_text(yaml.safe_dump(tiny_params(folder, shard_bytes)))
    (folder / "cluster.yaml").write_text("actors: 1\ncpus: 1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    return folder


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW", "RAY"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    own = {"PATH": path, "DVC_NO_ANALYTICS": "1", "PYTHONPATH": str(folder)}
    author = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@example.org"}
    return kept | own | author | {k.replace("AUTHOR", "COMMITTER"): v for k, v in author.items()}


def call(folder: Path, *command: str) -> str:
    return programs.call(*command, cwd=folder, env=environment(folder))


def ran(output: str) -> list[str]:
    return [stage for stage in STAGES if f"Running stage '{stage}'" in output]


def test_run_again_only_corpus_and_register_look(project: Path) -> None:
    """At the user's files, and into the registry; another registry gets the model."""
    before = (project / "metrics" / "registered.json").read_bytes()
    assert ran(call(project, "dvc", "repro")) == ["corpus", "register"]
    (project / "mlflow.db").rename(project / "mlflow.db.kept")
    assert ran(call(project, "dvc", "repro")) == ["corpus", "register"]
    assert (project / "metrics" / "registered.json").read_bytes() == before
    (project / "mlflow.db.kept").replace(project / "mlflow.db")


def test_after_an_equal_retraining_nothing_runs_again(project: Path) -> None:
    """Equal weights are an equal model, whichever run made them."""
    forced = call(project, "dvc", "repro", "--force", "--single-item", "pretrain")
    assert ran(forced) == ["pretrain"]
    assert ran(call(project, "dvc", "repro")) == ["corpus", "register"]


def test_a_changed_file_of_the_user_and_a_new_version_of_the_code_are_seen(tmp_path: Path) -> None:
    folder = new_project(tmp_path, shard_bytes=1 << 20)  # one piece, which needs no Ray
    every = ["corpus", "tokenize@general", "vocab"]
    assert ran(call(folder, "dvc", "repro", "vocab")) == every
    with (folder / "g.txt").open("a") as file:
        file.write("one more line\n")
    assert ran(call(folder, "dvc", "repro", "vocab")) == every
    code = folder / "pipeline" / "stages" / "vocab.py"
    version = load_stage("vocab").version
    changed = code.read_text().replace(f"version={version},", f"version={version + 1},")
    code.write_text(changed)
    assert ran(call(folder, "dvc", "repro", "vocab")) == ["corpus", "vocab"]


def test_metrics_and_graph(project: Path) -> None:
    shown = call(project, "dvc", "metrics", "show", "--json")
    values = json.loads(shown)[""]["data"]
    assert values["metrics/pretrain.json"]["data"]["times_below_unigram_higher_better"] > 1
    assert values["metrics/finetune.json"]["data"]["gain_share_higher_better"] > 0
    assert values["metrics/tasks-animals.json"]["data"]["f1_higher_better"] >= 0
    columns = {name for file in values.values() for name in file["data"]}
    others = {"accuracy_higher_better"}  # of tasks of another metric
    known = {column for name in NAMES for column in load_stage(name).figure_by_metric}
    assert columns == known - others
    assert "finetune" in call(project, "dvc", "dag", "--mermaid")


def test_the_registered_model_embeds_in_another_folder(project: Path, tmp_path: Path) -> None:
    code = """
import json, mlflow
model = mlflow.pyfunc.load_model("models:/elmo@champion")
layers = {"layers": "all"}
print(json.dumps([model.predict(["the cat sat"], params=layers)[0].tolist(),
                  model.predict([["the", "cat", "sat"], ["dog"]], params=layers)[0].tolist(),
                  model.predict(["the cat sat"])[0].tolist()]))
"""
    away = environment(project) | {"MLFLOW_TRACKING_URI": f"sqlite:///{project}/mlflow.db"}
    away.pop("PYTHONPATH")
    printed = programs.call(sys.executable, "-W", "ignore", "-c", code, cwd=tmp_path, env=away)
    from_text, from_tokens, average = map(np.array, json.loads(printed.splitlines()[-1]))
    expected = Embedder.load(project / "models" / "finetune").embed([["the", "cat", "sat"]])[0]
    np.testing.assert_allclose(from_text, expected, atol=1e-5)
    np.testing.assert_allclose(from_tokens, expected, atol=1e-5)
    np.testing.assert_allclose(average, expected.mean(0), atol=1e-5)


def test_a_version_leads_to_its_run_its_corpus_and_its_stores(project: Path) -> None:
    made = json.loads((project / "data" / "features" / "__elmo" / "manifest.json").read_text())
    registered = json.loads((project / "metrics" / "registered.json").read_text())
    assert made["model"]["digest"] == registered["model_digest"]
    assert made["model"]["training"]["stage"] == "finetune" and made["source"]["digest"]


def test_an_experiment_changes_only_what_follows(project: Path) -> None:
    """Last, since it leaves its result in the workspace."""
    done = call(project, "dvc", "exp", "run", "-S", "features.dtype=float32")
    assert ran(done) == ["corpus", "features", "register", "report"]
    assert FeatureStore(project / "data" / "features")[0].dtype == np.float32


def test_a_new_version_of_the_labelled_package_is_seen(project: Path) -> None:
    versions = json.loads((project / "data" / "packages.json").read_text())
    assert list(versions) == ["click"] and versions["click"]
    stage = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]["labels"]
    assert stage["deps"] == ["data/packages.json"]
