"""Runs in MLflow: who and where from, one clear line where it is down, no figure lost."""

import getpass
import json
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import load_model
from elmo.model.pretrained import find_pretrained_folder
from pipeline.terminal.urls import hide_credentials, with_login
from pipeline.tracking import registry, runs
from pipeline.tracking.client import FOLDER_TAG, check_mlflow, experiment_id, mlflow_client
from pipeline.tracking.runs import run_exists, start_run
from tests.elmo.conftest import save_tiny_model
from tests.pipeline.mlflow_process import MlflowServer
from tests.pipeline.stage_runs import runs_of


@dataclass(frozen=True)
class Params:
    """The params of a stage."""

    source: str = "https://user:hunter2@example.org/text"
    rows: int = 4


@pytest.fixture
def database(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_database.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{path}")
    for name in ("DVC_STAGE", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    return path


def history(uri: str, run_id: str, name: str = "loss") -> list[tuple[int, float]]:
    found = mlflow.MlflowClient(uri).get_metric_history(run_id, name)
    return sorted((one.step, one.value) for one in found)


def test_a_run_says_who_from_where_and_what_it_read(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    git = ["git", "-C", str(project), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    (project / "code.py").write_text("1\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setenv("DVC_ROOT", str(project))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    inputs = {"corpus": "c" * 64, "parent": "d" * 64}
    sources = {"corpus": tmp_path / "shards", "parent": Location("s3://key:hunter2@bucket/model")}
    names = []
    for stage, changed in (("pretrain", False), ("finetune", True)):
        if changed:
            (project / "code.py").write_text("2\n")
        with start_run(stage, Params(), inputs=inputs, sources=sources) as log:
            pass
        run = mlflow.MlflowClient().get_run(log.run_id)
        tags = run.data.tags
        names.append(run.info.run_name)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        assert tags["mlflow.source.git.commit"] == commit.stdout.strip()
        assert tags["git.dirty"] == str(changed).lower()
        assert tags.get("git.changed", "") == ("code.py" if changed else "")
        assert tags["mlflow.user"] == run.info.user_id == getpass.getuser()
        assert tags["mlflow.source.name"]
        assert mlflow.MlflowClient().get_experiment(run.info.experiment_id).name == "mine"
        datasets = {one.dataset.name: one.dataset for one in run.inputs.dataset_inputs}
        assert json.loads(datasets["corpus"].source)["uri"] == (tmp_path / "shards").as_uri()
        assert json.loads(datasets["parent"].source)["uri"] == "s3://bucket/model"
        assert json.loads(datasets["corpus"].profile) == {"digest": "c" * 64}
        assert run.data.params["source"] == "https://example.org/text"
    with start_run("pretrain", Params(), inputs={}) as log:
        names.append(mlflow.MlflowClient().get_run(log.run_id).info.run_name)
    assert len(set(names)) == 3
    assert b"hunter2" not in database.read_bytes()


def test_a_run_of_a_folder_goes_on_and_names_its_failure(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "pretrain" / "abc"
    folder.mkdir(parents=True)
    for error, status in ((KeyboardInterrupt, "KILLED"), (ZeroDivisionError, "FAILED")):
        with pytest.raises(error):
            with start_run("pretrain", Params(), inputs={}, folder=Location(folder)) as first:
                first.log_metrics({"loss": 3.0}, step=1)
                raise error
        assert mlflow.MlflowClient().get_run(first.run_id).info.status == status
    with start_run("pretrain", Params(), inputs={}, folder=Location(folder)) as log:
        assert mlflow.MlflowClient().get_run(log.run_id).info.status == "RUNNING"
        log.log_metrics({"loss": 2.0, "gone": float("nan")}, step=2)
        log.set_tag("store", "abc")
        (tmp_path / "page.html").write_text("<p>")
        log.log_artifact(tmp_path / "page.html")
    run = mlflow.MlflowClient().get_run(log.run_id)
    assert log.run_id == first.run_id and run.info.status == "FINISHED"
    assert run.data.tags["store"] == "abc" and "gone" not in run.data.metrics
    assert history(f"sqlite:///{database}", log.run_id) == [(1, 3.0), (2, 2.0)]
    assert [one.path for one in mlflow.MlflowClient().list_artifacts(log.run_id)] == [
        "environment.json",
        "page.html",
    ]
    mlflow.MlflowClient().delete_run(first.run_id)
    with start_run("pretrain", Params(), inputs={}, folder=Location(folder)) as log:
        assert log.run_id != first.run_id


@pytest.mark.parametrize(("name", "fits"), [("My Drive #1", True), ("a%20b", False), ("a?", False)])
def test_a_projects_path_holds_the_database_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fits: bool
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DVC_ROOT", str(folder))
    if fits:
        with start_run("test", Params(), inputs={}) as log:
            log.log_artifact(Path(__file__))
        assert sorted(os.listdir(folder)) == ["mlflow.db", "mlruns"]
        assert len(list(folder.rglob("test_tracking.py"))) == 1
    else:
        with pytest.raises(ElmoError, match="rename the folder, or set MLFLOW_TRACKING_URI"):
            check_mlflow()
        assert os.listdir(folder) == []
    assert os.listdir(tmp_path) == [name]


@pytest.mark.slow
def test_figures_of_an_outage_are_sent_when_the_server_is_back_and_none_twice(
    database: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = MlflowServer(database)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    try:
        server.start()
        with start_run("pretrain", Params(), inputs={}) as log:
            log.log_steps((step, {"loss": float(step)}) for step in range(1500))
            server.kill()
            began = time.monotonic()
            for step in (*range(1500, 1700), *range(1400, 1500)):  # the last hundred are there
                log.log_metrics({"loss": float(step)}, step=step)
            log.set_tag("model_digest", "abc")
            assert time.monotonic() - began < 120, "each figure waited for the server"
            server.start()
        assert history(server.uri, log.run_id) == [(step, float(step)) for step in range(1700)]
        run = mlflow.MlflowClient(server.uri).get_run(log.run_id)
        assert (run.info.status, run.data.tags["model_digest"]) == ("FINISHED", "abc")
        said = capsys.readouterr().err
        assert said.count("can't be reached") == said.count("MLflow answers again") == 1

        monkeypatch.setattr(runs, "FLUSH_SECONDS", 0.5)
        with start_run("pretrain", Params(), inputs={}) as log:
            server.kill()
            log.log_metrics({"loss": 200.0}, step=200)
        assert "is missing figures of run" in capsys.readouterr().err, "the stage itself ends well"
    finally:
        server.kill()


def test_addresses_are_shown_without_their_secrets() -> None:
    for text, expected in {
        "https://user:pw@example.org/a": "https://example.org/a",
        "failed with postgresql://me:pw@db/mlflow and": "failed with postgresql://db/mlflow and",
        "https://x.org/a?sig=abc&page=2": "https://x.org/a?sig=***&page=2",
        "https://x.org/a?X-Amz-Signature=abc": "https://x.org/a?X-Amz-Signature=***",
        "data/text@home.txt": "data/text@home.txt",
        "http://x.org/a?token=abc: no answer": "http://x.org/a?token=***: no answer",
        "(s3://k:pw@b/a?key=abc), s3://b/a?.txt": "(s3://b/a?key=***), s3://b/a?.txt",
    }.items():
        assert hide_credentials(text) == expected


def test_a_login_comes_back_from_the_addresses_that_the_user_gave() -> None:
    given = ["text.txt", "ftp://me:pw@example.org/a/*", "https://x.org/a?sig=abc"]
    for one in ("ftp://me:pw@example.org/a/b.txt", "https://x.org/a?sig=abc", "https://y.org/a"):
        assert with_login(hide_credentials(one), given) == one


@pytest.mark.slow
def test_runs_that_name_the_same_new_dataset_at_once_all_begin(database: Path) -> None:
    together = threading.Barrier(6)

    def begin(_: int) -> str:
        together.wait(60)
        with start_run("register", Params(), inputs={"model": "a" * 64}) as run:
            return run.run_id

    for _ in range(3):
        with ThreadPoolExecutor(6) as pool:
            assert len(set(pool.map(begin, range(6)))) == 6


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a run, an artifact of it, and a registered model."""
    folder = tmp_path / "a project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    for name in ("DVC_STAGE", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    save_tiny_model(folder / "model")
    register(folder, rows=4)
    return folder


def models_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the champion of a project is read from, as a job that knows the database does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    return find_pretrained_folder("models:/tiny@champion")


def register(folder: Path, *, rows: int = 5) -> tuple[int, str]:
    with start_run("test", Params(rows=rows), inputs={}) as log:
        return registry.register(
            folder / "model",
            name="tiny",
            margin=0.01,
            tags={"model_digest": load_model(folder / "model").digest},
            run_id=log.run_id,
        )


@pytest.mark.slow
def test_a_moved_project_registers_its_model_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = finished.with_name("moved")
    monkeypatch.chdir("/")
    finished.rename(new)
    with pytest.raises(ElmoError, match="run there: elmo run register"):
        models_of(new, monkeypatch)
    version, decision = register(new)
    assert version == 2 and "it is the same model" in decision
    assert "to register the model here, run: elmo run register" in capsys.readouterr().err
    assert models_of(new, monkeypatch).is_relative_to(new)
    assert not finished.exists()
    assert register(new)[0] == 2
    assert capsys.readouterr().err == "", "once"


@pytest.mark.slow
def test_a_copied_project_leaves_the_original_alone(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (earlier,) = runs_of("test")
    copy = Path(shutil.copytree(finished, finished.with_name("copy")))
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    monkeypatch.chdir(copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{copy / 'mlflow.db'}")
    with start_run("test", Params(rows=5), inputs={}, sources={}) as log:
        mlflow_client().log_text(log.run_id, "x", "text.txt")
    (written,) = copy.rglob("text.txt")
    assert not run_exists(earlier.info.run_id), "it would go on in the original"
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert models_of(finished, monkeypatch).is_relative_to(finished)


@pytest.mark.parametrize("tagged", [True, False])
def test_an_experiment_that_keeps_its_files_elsewhere_by_choice_goes_on(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tagged: bool
) -> None:
    check_mlflow()
    elsewhere = tmp_path / "elsewhere" / "mlruns"
    tags = {FOLDER_TAG: str(elsewhere.parent)} if tagged else {}
    client = mlflow_client()
    made = client.create_experiment("elmo", elsewhere.as_uri(), tags)
    assert (experiment_id(client) == made) is not tagged
