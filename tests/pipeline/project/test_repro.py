"""`elmo run`: `dvc repro` with three lines at its end; a stop is passed on, and work is saved."""

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elmo.errors import ElmoError
from pipeline.project.outcome import outcome_lines
from pipeline.project.repro import repro
from tests.hostile.harness import paired
from tests.pipeline.command_line import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "40", "GIT_DIR": "none"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of DVC's with tiny stages."""
    folder = tmp_path_factory.mktemp("project")
    command = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT | {"DVC_NO_ANALYTICS": "1"}, check=True)
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pipeline", "run", *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_run_needs_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ElmoError, match=r"dvc.yaml: no such file; .*elmo init"):
        repro([])
    (tmp_path / "dvc.yaml").touch()
    with pytest.raises(ElmoError, match=r"\.dvc: no such folder here or above; run: dvc init"):
        repro([])


def test_options_of_dvc_are_passed_on(project: Path) -> None:
    good = {"cmd": "echo made", "always_changed": True}
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"good": good}}))
    code, out, error = run(project, "good", "--force")
    assert (code, error) == (0, "") and "made\n" in out
    code, out, error = run(project, "--dry", "--single-item", "good")
    assert (code, error) == (0, "")
    assert out.startswith("Running stage 'good':\n> echo made\n")


LONG = """
import time
from pathlib import Path
import click
from pipeline.commands import cli

@click.group()
def stages(): pass

@stages.command()
def long():
    try:
        Path("running").touch()
        time.sleep(600)
    finally:
        time.sleep(0.5)
        Path("saved").touch()

cli.run_cli(stages)
"""
# What is not ours: a second signal ends it before it has saved.
OTHER = """
import time
from pathlib import Path

try:
    Path("running").touch()
    time.sleep(600)
finally:
    time.sleep(0.5)
    Path("saved").touch()
"""
STOPPED = "error: interrupted; run the same command again\n"


def take_signals() -> None:
    """As from a terminal: the tests themselves may run in the background, or below nohup."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(project: Path, command: str, **options: Any) -> "subprocess.Popen[str]":
    """`elmo run` of one stage, which runs."""
    stage = {"cmd": f"{sys.executable} {command}", "outs": [{"saved": {"cache": False}}]}
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"one": stage}}))
    for name, code in {"long.py": LONG, "other.py": OTHER}.items():
        (project / name).write_text(code)
    for name in ("running", "saved"):
        (project / name).unlink(missing_ok=True)
    given = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": ENVIRONMENT,
        "preexec_fn": take_signals,
    } | options
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run"],
        cwd=project,
        text=True,
        start_new_session=True,
        **given,
    )
    while not (project / "running").exists() and process.poll() is None:
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("send", "number", "shell"),
    paired(
        [os.kill, os.killpg] * 3,
        [signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        ["/bin/bash", "/bin/sh", "", "/bin/sh", "", "/bin/bash"],
    ),
)
def test_an_interrupted_run_ends_its_stage_and_says_so_once(
    project: Path, send: Callable[[int, int], None], number: int, shell: str
) -> None:
    """Whichever shell DVC starts the stage with."""
    process = start(project, "long.py long", env=ENVIRONMENT | {"SHELL": shell})
    send(process.pid, number)
    _, error = process.communicate()  # the stage has ended too: it held the pipe
    assert process.returncode == 1 and error.endswith(STOPPED) and error.count("interrupted;") == 1
    assert (project / "saved").exists()


@pytest.mark.parametrize("command", ["long.py long", "other.py"])
def test_a_terminals_interrupt_comes_to_a_stage_once(project: Path, command: str) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(project, command, stdin=theirs, preexec_fn=take_terminal)
    os.write(ours, b"\x03")
    _, error = process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 1 and error.endswith(STOPPED)
    assert (project / "saved").exists()


def test_an_interrupt_that_is_ignored_stays_ignored(project: Path) -> None:
    """A script's shell ignores it for what it starts in the background."""
    process = start(
        project, "long.py long", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None and not (project / "saved").exists()
    process.terminate()
    assert process.communicate()[1].endswith(STOPPED)
    assert (project / "saved").exists()


def test_three_lines_end_a_whole_run(project: Path) -> None:
    one = {"cmd": "echo it\\'s", "outs": [{"x.json": {"cache": False}}]}
    one["cmd"] += "; touch x.json"
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"one": one}}))
    code, out, _ = run(project)
    assert code == 0 and out.endswith(
        "made:   nothing yet\nscored: nothing yet\n"
        "next:   keep these numbers: git add dvc.lock metrics params.yaml && git commit; "
        "compare runs: dvc metrics diff; curves: mlflow ui --backend-store-uri sqlite:///mlflow.db\n"
    )
    assert "made:" not in run(project, "one")[1]


def test_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    for folder in ("models/finetune", "curves/finetune", "data/features", "report", "numbers"):
        Path(folder).mkdir(parents=True)
    for file in ("report/index.html", "unlike.txt"):
        Path(file).touch()
    tuned = {"domain_perplexity_before": 164.31, "domain_perplexity_after": 92.6, "steps": 10}
    arms = {"elmo": {"accuracy": 0.9, "f1": 0.695}, "baseline": {"accuracy": 0.8, "f1": 0.6}}
    files = {"pretrain": {"heldout_perplexity": 96.71}, "finetune": tuned, "tasks-ner": arms}
    for name, figures in files.items():
        Path("numbers", f"{name}.json").write_text(json.dumps(figures))
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, name)
    project = yaml.safe_load(Path("dvc.yaml").read_text())["stages"]
    project["finetune"]["outs"].sort()  # as `dvc freeze` does
    project["own"] = {"cmd": "echo it's || python -m elmo_pipeline nothing"}  # no shell's words
    Path("dvc.yaml").write_text(json.dumps({"stages": project}))
    done = ["pretrain", "finetune", "features", "tasks@ner", "report", "own"]
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": dict.fromkeys(done, {})}))
    made, scored, following = outcome_lines()
    assert made == "made:   model models/finetune, vectors data/features, report report/index.html"
    assert scored == (
        "scored: perplexity 96.7 on held-out general text; domain perplexity 164.3 → 92.6; "
        "ner f1 0.695 with ELMo, 0.600 without ELMo"
    )
    for command in (
        "open report",
        "git add dvc.lock metrics params.yaml && git commit;",
        "dvc met",
    ):
        assert command in following
    settings = Path("params.yaml").read_text()
    assert '  model: ""' in settings
    Path("params.yaml").write_text(settings.replace('  model: ""', "  model: english", 1))
    assert outcome_lines()[1].startswith(
        "scored: domain perplexity 164.3 → 92.6, started from english; ner f1"
    )
