"""Runs in MLflow: who and where from, one clear line where it is down, no figure lost."""

import getpass
import json
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pytest
from click.testing import CliRunner

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.model.folder import load_model
from elmo.model.pretrained import pretrained_folder
from pipeline import tracking
from pipeline.commands.cli import cli
from pipeline.terminal.urls import with_login, without_credentials
from pipeline.tracking import champion, moved, origin, registry, unfinished
from tests.elmo.conftest import save_tiny_model
from tests.pipeline.stage_runs import runs_of

ROOT = Path(__file__).resolve().parents[3]


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


@contextmanager
def served(database: Path, folder: Path) -> Iterator[str]:
    """MLflow's server on a database; `folder` takes its faults."""
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("mlflow_server.py")), database, folder],
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (folder / "port").exists():
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{(folder / 'port').read_text()}"
    finally:
        process.kill()
        process.wait()


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
    sources = {
        "corpus": tmp_path / "shards",
        "parent": Location("s3://key:hunter2@bucket/model"),
    }
    names = []
    for stage, changed in (("pretrain", False), ("finetune", True)):
        if changed:
            (project / "code.py").write_text("2\n")
        with tracking.run(stage, Params(), inputs=inputs, sources=sources) as log:
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
        assert f"`{stage}`" in tags["mlflow.note.content"]
        assert "cccccccccccc" in tags["mlflow.note.content"]
        assert mlflow.MlflowClient().get_experiment(run.info.experiment_id).name == "mine"
        datasets = {one.dataset.name: one.dataset for one in run.inputs.dataset_inputs}
        assert json.loads(datasets["corpus"].source)["uri"] == (tmp_path / "shards").as_uri()
        assert json.loads(datasets["parent"].source)["uri"] == "s3://bucket/model"
        assert json.loads(datasets["corpus"].profile) == {"digest": "c" * 64}
        assert run.data.params["source"] == "https://example.org/text"
    assert names[0] != names[1]
    assert b"hunter2" not in database.read_bytes()


@pytest.mark.slow
def test_the_stages_of_one_pass_have_one_parent(database: Path) -> None:
    """Each stage is a process that DVC starts; the pass is DVC's own process."""
    code = """
import sys
from dataclasses import make_dataclass
from pipeline import tracking
with tracking.run(sys.argv[1], make_dataclass("Params", [])(), inputs={}) as log:
    print(log.run_id)
"""
    starter = f"""
import os, subprocess, sys
for stage in ("pretrain", "finetune"):
    subprocess.run([sys.executable, "-c", {code!r}, stage], check=True,
                   env=os.environ | {{"DVC_STAGE": stage}})
"""
    parents, stages = set(), []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", starter], cwd=ROOT, capture_output=True, text=True, check=True
        )
        runs = [mlflow.MlflowClient().get_run(one) for one in done.stdout.split()]
        (parent,) = {run.data.tags["mlflow.parentRunId"] for run in runs}
        parents.add(parent)
        stages += [run.data.tags["stage"] for run in runs]
        assert mlflow.MlflowClient().get_run(parent).info.status == "FINISHED"
    assert stages == ["pretrain", "finetune"] * 2
    assert len(parents) == 2


def test_a_run_of_a_folder_goes_on_and_names_its_failure(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "pretrain" / "abc"
    folder.mkdir(parents=True)
    with pytest.raises(ZeroDivisionError):
        with tracking.run("pretrain", Params(), inputs={}, folder=Location(folder)) as first:
            first.log_metrics({"loss": 3.0}, step=1)
            raise ZeroDivisionError
    assert mlflow.MlflowClient().get_run(first.run_id).info.status == "FAILED"
    with tracking.run("pretrain", Params(), inputs={}, folder=Location(folder)) as log:
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
    assert list((folder.parent / "unsent").iterdir()) == []


def refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one line with which a stage ends, before it has done anything."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(ElmoError) as error:
        with tracking.run("pretrain", Params(), inputs={}):
            raise AssertionError("the stage began")
    line = str(error.value)
    assert "\n" not in line and "MLFLOW_T" in line
    return line


def test_a_server_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://user:hunter2@127.0.0.1:{free.getsockname()[1]}"
    line = refused(uri, monkeypatch)
    assert "can't be reached (connection refused)" in line and "hunter2" not in line


def test_a_database_that_is_moved_away_is_one_line(
    database: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tracking.client.catch_mlflow_errors():
        client = tracking.client.mlflow_client()
        run = client.create_run(tracking.client.experiment_id(client)).info.run_id
    database.rename(database.with_name("moved.db"))
    with pytest.raises(ElmoError) as error, tracking.client.catch_mlflow_errors():
        client.log_metric(run, "loss", 1.0)
    gone = "is gone; run the same command again where its folder is now"
    assert str(error.value) == f"MLflow at sqlite:///{database} {gone}"
    assert capfd.readouterr().err == ""


def test_a_registered_name_may_hold_quotes(database: Path) -> None:
    for name in ("o'neil", 'the "best"'):
        mlflow.MlflowClient().create_registered_model(name)
        assert champion.versions(name) == []
    with pytest.raises(ElmoError, match="both kinds of quotes"):
        champion.versions("""o'neil's "best\"""")


def test_a_file_of_this_machine_is_not_laid_to_mlflow(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError), tracking.catch_mlflow_errors():
        (file / "below").mkdir()


def test_a_long_message_keeps_its_reason() -> None:
    error = RuntimeError("it failed: " + "of no interest " * 50 + "the disk is full")
    assert tracking.client.shorten_error(error).endswith("the disk is full")


def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking.client, "ANSWER", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        line = refused(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
    assert "gives no answer in 1 s" in line


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("folder", "is a folder, not MLflow's database"),
        ("garbage", "file is not a database"),
        ("foreign", "is another program's database"),
        ("locked", "database is locked"),
    ],
)
def test_a_database_that_is_none(
    what: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mlflow.db"
    monkeypatch.setattr(tracking.database, "LOCKED", 0.2)
    if what == "folder":
        path.mkdir()
    elif what == "garbage":
        path.write_bytes(b"not a database, whatever its name" * 100)
    elif what == "foreign":
        with closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE experiments (of_a_laboratory)")
    else:
        held = sqlite3.connect(path, isolation_level=None)
        held.execute("CREATE TABLE one (two)")
        held.execute("BEGIN EXCLUSIVE")
    before = {one: one.stat().st_size for one in tmp_path.iterdir()}
    line = refused(f"sqlite:///{path}", monkeypatch)
    assert expected in line and str(path) in line
    assert {one: one.stat().st_size for one in tmp_path.iterdir()} == before


def test_a_folder_that_can_not_be_written(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a database, and with one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount")
    try:
        shutil.copy(empty_database, folder / "old.db")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        for name in ("new.db", "old.db"):
            assert "can't be written" in refused(f"sqlite:///{folder / name}", monkeypatch)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_server_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = re.findall(r"port (\d+)", process.stdout.readline())[0]
        line = refused(f"http://127.0.0.1:{port}", monkeypatch)
    finally:
        process.kill()
        process.wait()
    assert "check that it is an MLflow server" in line


def test_a_deleted_experiment_is_named(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = mlflow.MlflowClient()
    client.delete_experiment(client.create_experiment("gone"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gone")
    with pytest.raises(ElmoError, match="experiment gone is deleted; restore it"):
        with tracking.run("pretrain", Params(), inputs={}):
            pass


@pytest.mark.slow
def test_a_server_slow_refusing_and_asking_for_a_password(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """One server, since it takes seconds to start: no figure is lost, the stage never waits."""
    faults, work = tmp_path / "faults", tmp_path / "runs" / "pretrain" / "abc"
    work.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with served(database, faults) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with tracking.run("pretrain", Params(), inputs={}, folder=Location(work)) as log:
            (faults / "fault").write_text("slow")
            began = time.monotonic()
            for step in range(100):
                log.log_metrics({"loss": float(step)}, step=step)
            took = time.monotonic() - began
            (faults / "fault").write_text("refuse")
            while not (faults / "refused").exists():
                time.sleep(0.05)
            for step in range(100, 200):
                log.log_metrics({"loss": float(step)}, step=step)
            (faults / "fault").unlink()
        assert took < 100 * 2, "each figure waited for its answer"
        assert history(uri, log.run_id) == [(step, float(step)) for step in range(200)]
        assert mlflow.MlflowClient(uri).get_run(log.run_id).info.status == "FINISHED"

        monkeypatch.setattr(tracking.runs, "FLUSH", 0.5)
        with tracking.run("pretrain", Params(), inputs={}, folder=Location(work)) as log:
            (faults / "fault").write_text("refuse")
            log.log_metrics({"loss": 200.0}, step=200)
        told = capsys.readouterr().err
        assert "stay in" in told and tracking.count_unsent(work.parent / "unsent") >= 2
        (faults / "fault").unlink()
        waiting = unfinished.find_unfinished(tmp_path / "runs", send=False)
        assert any(
            "wait for MLflow; to send" in line for line in unfinished.unfinished_lines(waiting)
        )
        while tracking.count_unsent(work.parent / "unsent"):  # the run's own thread may still try
            unfinished.find_unfinished(tmp_path / "runs", send=True)
        assert history(uri, log.run_id)[-1] == (200, 200.0)

        (faults / "password").write_text("hunter2")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "user")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
        assert "refuses the login" in refused(uri, monkeypatch)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
        tracking.check_mlflow()


def test_records_of_work_at_a_url_wait_on_this_machine_and_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tracking.spool_folder(Location("memory://bucket/work/pretrain/abc"))
    folder.mkdir(parents=True)
    (folder / "1.jsonl").write_text('{"status": "FINISHED"}\n')
    assert tracking.count_unsent(folder) == 1
    found = unfinished.find_unfinished(tmp_path / "work", send=False)
    assert found.unsent == {str(folder): 1}
    # Another server does not know the run, and would refuse its figures for good.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    assert unfinished.find_unfinished(tmp_path / "work", send=True).unsent == {}
    assert tracking.count_unsent(folder) == 1


@pytest.mark.slow
def test_four_writers_lose_no_figure_through_an_outage(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults, work = tmp_path / "faults", tmp_path / "runs" / "pretrain" / "abc"
    work.mkdir(parents=True)
    code = """
import sys
from pathlib import Path
from pipeline import tracking
run = tracking.Run(sys.argv[1], spool=Path(sys.argv[2]))
for step in range(250):
    run.log_metrics({f"loss-{sys.argv[3]}": float(step)}, step=step)
    if step == 100:
        print("half", flush=True)
        sys.stdin.readline()
sys.exit(run.close(120))
"""
    with served(database, faults) as uri:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with tracking.run("pretrain", Params(), inputs={}, folder=Location(work)) as log:
            arguments = [sys.executable, "-c", code, log.run_id, str(work.parent / "unsent")]
            writers = [
                subprocess.Popen(
                    [*arguments, str(k)],
                    cwd=ROOT,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                for k in range(4)
            ]
            for writer in writers:
                assert writer.stdout is not None and writer.stdout.readline() == "half\n"
            (faults / "fault").write_text("refuse")
            writers[3].kill()
            for writer in writers[:3]:
                assert writer.stdin is not None
                writer.stdin.write("go\n")
                writer.stdin.flush()
            while not (faults / "refused").exists():
                time.sleep(0.05)
            (faults / "fault").unlink()
            for writer in writers:
                writer.communicate()
        assert [writer.returncode for writer in writers] == [0, 0, 0, -9]
        for k, steps in enumerate((250, 250, 250, 101)):
            expected = [(step, float(step)) for step in range(steps)]
            assert history(uri, log.run_id, f"loss-{k}") == expected
    assert list((work.parent / "unsent").iterdir()) == []


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
        assert without_credentials(text) == expected


def test_a_login_comes_back_from_the_addresses_that_the_user_gave() -> None:
    given = ["text.txt", "ftp://me:pw@example.org/a/*", "https://x.org/a?sig=abc"]
    for one in ("ftp://me:pw@example.org/a/b.txt", "https://x.org/a?sig=abc", "https://y.org/a"):
        assert with_login(without_credentials(one), given) == one


def test_unfinished_work_is_listed(database: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work" / "pretrain" / "abc"
    folder.mkdir(parents=True)
    with tracking.run("pretrain", Params(), inputs={}, folder=Location(folder)) as log:
        log.log_metrics({"after.general.average": 123.4})
    command = ["work", "--work", str(tmp_path / "work")]
    assert "  pretrain abc  " in CliRunner().invoke(cli, command).stdout
    read = json.loads(CliRunner().invoke(cli, [*command, "--json"]).stdout)
    assert [(one["stage"], one["folder"]) for one in read["work"]] == [("pretrain", str(folder))]
    assert read["unsent"] == {}


def test_the_work_folder_of_the_stages_is_the_one_that_is_listed() -> None:
    (option,) = [one for one in cli.get_command(None, "work").params if one.name == "folder"]
    assert f"--work {option.default}\n" in (ROOT / "dvc.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_runs_that_name_the_same_new_dataset_at_once_all_begin(database: Path) -> None:
    together = threading.Barrier(6)

    def begin(_: int) -> str:
        together.wait(60)
        with tracking.run("register", Params(), inputs={"model": "a" * 64}) as run:
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
    with tracking.run("test", Params(), inputs={}, sources={}) as log:
        digest = load_model(folder / "model").digest
        registry.register(
            folder / "model",
            name="tiny",
            alias="champion",
            margin=0.01,
            tags={"model_digest": digest},
            run_id=log.run_id,
            description="",
        )
        log.set_tag("store_place", str(folder / "store"))
    return folder


def models_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the champion of a project is read from, as a job that knows the database does."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    return pretrained_folder("models:/tiny@champion")


@pytest.mark.slow
def test_a_moved_project_keeps_its_registered_model(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new = finished.with_name("moved")
    monkeypatch.chdir("/")
    finished.rename(new)
    with pytest.raises(ElmoError, match="if its project was moved, run there: elmo run"):
        models_of(new, monkeypatch)
    said = CliRunner().invoke(cli, ["stores", "tiny"])  # as any command that asks the registry
    assert said.exit_code == 0 and f"was in {finished};" in said.stderr
    assert models_of(new, monkeypatch).is_relative_to(new)
    (run,) = runs_of("test")
    assert run.data.tags["store_place"] == str(new / "store")
    tracking.check_mlflow()
    assert capsys.readouterr().err == ""  # once


@pytest.mark.slow
def test_a_copied_project_leaves_the_original_alone(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(finished, finished.with_name("copy")))
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    monkeypatch.chdir(copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{copy / 'mlflow.db'}")
    with tracking.run("test", Params(rows=5), inputs={}, sources={}) as log:
        tracking.mlflow_client().log_text(log.run_id, "x", "text.txt")
    (written,) = copy.rglob("text.txt")
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert models_of(copy, monkeypatch).is_relative_to(copy)
    assert models_of(finished, monkeypatch).is_relative_to(finished)


@pytest.mark.parametrize("tagged", [True, False])
def test_only_what_a_project_has_written_is_found_again(
    database: Path, tmp_path: Path, tagged: bool
) -> None:
    """An experiment that keeps its artifacts elsewhere by choice stays there."""
    tracking.check_mlflow()
    elsewhere = tmp_path / "elsewhere" / "mlruns"
    tags = {moved.HOME: str(elsewhere.parent)} if tagged else {}
    tracking.mlflow_client().create_experiment("theirs", elsewhere.as_uri(), tags)
    assert moved.rewrite_moved_paths(database) == ([elsewhere.parent] if tagged else [])
    location = tracking.mlflow_client().get_experiment_by_name("theirs").artifact_location
    assert location == ((tmp_path / "mlruns") if tagged else elsewhere).as_uri()


def test_the_run_of_a_pass_has_the_figures_that_people_compare(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "repro_key", lambda: "one")
    for stage, folder in (("finetune", Location(tmp_path / "work" / "run")), ("tasks", None)):
        with tracking.run(stage, Params(), inputs={}, folder=folder) as log:
            log.log_to_parent(
                {f"{stage}.gain": 0.25, f"{stage}.none": None}, {f"{stage}.lr": 0.001}
            )
    with tracking.run("report", Params(), inputs={}) as log:
        assert log.parent
    client = mlflow.MlflowClient()
    whole = client.get_run(log.parent).data
    assert whole.metrics == {"finetune.gain": 0.25, "tasks.gain": 0.25}
    assert whole.params == {"finetune.lr": "0.001", "tasks.lr": "0.001"}
    (of_tasks,) = runs_of("tasks")
    home = client.get_experiment(of_tasks.info.experiment_id)
    assert home.name == "elmo-tasks"
    monkeypatch.setattr(origin, "repro_key", lambda: None)
    with tracking.run("report", Params(), inputs={}) as log:
        log.log_to_parent({"gain": 1.0}, {})  # outside a pass: nobody would look there
    assert client.get_run(log.run_id).data.metrics == {}
