"""`elmo run`: what DVC refuses is one line and exit code 1, wrong usage too."""

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
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zc.lockfile

from elmo.errors import ElmoError
from pipeline.project import outcome, repro
from tests.pipeline.command_line import ROOT

STAGES = """stages:
  good: {cmd: python -c "print('made')", always_changed: true}
  bad: {cmd: "python -c \\"import sys; sys.exit('error: mine')\\"", params: [x]}
  killed: {cmd: kill -9 $$}
"""
MARK = "<<<<<<< HEAD"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "40", "GIT_DIR": "none"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of DVC's with tiny stages."""
    folder = tmp_path_factory.mktemp("project")
    command = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT | {"DVC_NO_ANALYTICS": "1"}, check=True)
    return folder


@pytest.fixture
def stages(project: Path) -> Path:
    """The same, as it was."""
    (project / "dvc.yaml").write_text(STAGES)
    (project / "params.yaml").write_text("x: 1\n")
    (project / "dvc.lock").unlink(missing_ok=True)
    return project


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pipeline", "run", *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_run_needs_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ElmoError, match=r"dvc.yaml: no such file; .*elmo init"):
        repro.repro([])


def test_a_stage_prints_its_own_lines_alone(stages: Path) -> None:
    assert run(stages, "good", "--force") == (0, "made\n", "")
    code, out, error = run(stages, "good", "--dry", "--force")
    assert (code, error) == (0, "") and "Running stage 'good'" in out


LONG = """
import time
from pathlib import Path
import click
from pipeline.commands import cli

@click.group()
def stages(): pass

@stages.command()
def long():
    Path("running").touch()
    try:
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

Path("running").touch()
try:
    time.sleep(600)
finally:
    time.sleep(0.5)
    Path("saved").touch()
"""
WAIT = """
import time
from pathlib import Path

Path("running").touch()
while not Path("go").exists():
    time.sleep(0.05)
Path("saved").touch()
"""
STOPPED = "error: interrupted; run the same command again to go on\n"


def start(project: Path, command: str, **options: Any) -> "subprocess.Popen[str]":
    """`elmo run` of one stage, which runs."""
    stage = {"cmd": f"{sys.executable} {command}", "outs": [{"saved": {"cache": False}}]}
    (project / "dvc.yaml").write_text(json.dumps({"stages": {"one": stage}}))
    for name, code in {"long.py": LONG, "other.py": OTHER, "wait.py": WAIT}.items():
        (project / name).write_text(code)
    for name in ("running", "saved"):
        (project / name).unlink(missing_ok=True)
    given = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "env": ENVIRONMENT,
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh", ""])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_an_interrupted_run_ends_its_stage_and_says_so_once(
    project: Path, send: Callable[[int, int], None], number: int, shell: str
) -> None:
    """The signal comes to the run alone, or to the stage too, as a supervisor may send it."""
    process = start(project, "long.py long", env=ENVIRONMENT | {"SHELL": shell})
    send(process.pid, number)
    _, error = process.communicate()  # the stage has ended too: it held the pipe
    assert (process.returncode, error) == (1, STOPPED)
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
    assert process.communicate()[1] == STOPPED


def test_another_run_at_work_is_one_line(project: Path) -> None:
    process = start(project, "long.py long")
    line = "error: another run (PID {}) is at work in this project; wait for it, or stop it\n"
    assert run(project) == (1, "", line.format(process.pid))
    process.terminate()
    process.communicate()
    with closing(zc.lockfile.LockFile(str(project / ".dvc/tmp/lock"))):  # as between two stages
        assert run(project) == (1, "", line.format(os.getpid()))


def test_a_killed_run_leaves_nothing_that_stops_the_next(project: Path) -> None:
    process = start(project, "other.py")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    lock = (project / ".dvc/tmp/rwlock").read_text()
    assert str(process.pid) in lock
    assert run(project, "one", "--dry")[::2] == (0, "")
    again = lock.replace(f'"pid": {process.pid}', f'"pid": {os.getpid()}')  # it is ours by now
    (project / ".dvc/tmp/rwlock").write_text(again)
    code, _, error = run(project)
    (project / ".dvc/tmp/rwlock").unlink()
    assert code == 1 and error == (
        f"error: .dvc/tmp/rwlock: names process {os.getpid()}, which is no run any more; delete "
        "that file, and run the same command again\n"
    )


def test_a_project_that_is_moved_while_it_runs_is_one_line(project: Path, tmp_path: Path) -> None:
    there = tmp_path / "project"
    shutil.copytree(project, there)
    process = start(there, "wait.py")
    there.rename(tmp_path / "moved")
    (tmp_path / "moved" / "go").touch()
    assert process.communicate()[1] == (
        f"error: {there}: was moved or deleted meanwhile; run the command again where it is now\n"
    )
    assert process.returncode == 1 and os.listdir(tmp_path) == ["moved"]


def test_a_skipped_stage_is_a_line_and_three_end_a_whole_run(project: Path) -> None:
    one = {"cmd": "touch x.json", "outs": [{"x.json": {"cache": False}}]}
    features = "python -m elmo_pipeline features data/shards models/finetune data/features"
    (project / "dvc.yaml").write_text(
        json.dumps({"stages": {"one": one, "features": {"cmd": f"true || {features}"}}})
    )
    assert run(project)[:2] == (
        0,
        "made:   nothing yet\nscored: nothing yet\n"
        "next:   compare runs: dvc metrics diff; "
        "curves: mlflow ui --backend-store-uri sqlite:///mlflow.db\n",
    )
    assert run(project, "one")[1] == "one: up to date\n"


def test_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    subprocess.run(["git", "init", "-q"], check=True)
    for folder in ("models/finetune", "data/features", "report", "numbers"):
        Path(folder).mkdir(parents=True)
    Path("report/index.html").touch()
    tuned = {"domain_perplexity_before": 164.31, "domain_perplexity_after": 92.6, "steps": 10}
    arms = {"elmo": {"accuracy": 0.9, "f1": 0.695}, "baseline": {"accuracy": 0.8, "f1": 0.6}}
    files = {"pretrain": {"heldout_perplexity": 96.71}, "finetune": tuned, "tasks-ner": arms}
    for name, figures in files.items():
        Path("numbers", f"{name}.json").write_text(json.dumps(figures))
    begin = "python -m elmo_pipeline"
    commands = [
        f"{begin} pretrain data/shards/general data/vocab models/pretrain --work work "
        "--numbers numbers/pretrain.json",
        f"{begin} finetune models/pretrain d g models/finetune --numbers numbers/finetune.json",
        f"{begin} features data/shards/domain models/finetune data/features --work work",
        f"{begin} tasks ner models/finetune models/tasks/ner --numbers numbers/tasks-ner.json",
        f"{begin} report report --numbers-in numbers",
    ]
    made, scored, following = outcome.outcome_lines(commands, ["numbers"])
    assert made == "made:   model models/finetune, vectors data/features, report report/index.html"
    assert scored == (
        "scored: perplexity 96.7 on held-out general text; domain perplexity 164.3 → 92.6; "
        "ner f1 0.695 with ELMo, 0.600 without ELMo"
    )
    _, taken, _ = outcome.outcome_lines(commands, ["numbers"], started_from="english")
    assert taken.startswith("scored: domain perplexity 164.3 → 92.6, started from english; ner f1")
    assert following == (
        "next:   open report/index.html; keep these numbers: git add numbers && git commit -m "
        "Results; compare runs: dvc metrics diff"
    )


def test_a_dry_run_lists_what_it_would_run_and_no_hint(stages: Path) -> None:
    code, out, error = run(stages, "--dry", "good")
    assert (code, error) == (0, "")
    assert out == "Running stage 'good':\n> python -c \"print('made')\"\n"


def test_settings_that_changed_are_kept_with_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    Path("dvc.lock").touch()
    assert "git add dvc.lock && git commit" in outcome.outcome_lines([], ["dvc.lock"])[2]
    Path("params.yaml").touch()
    assert "git add dvc.lock params.yaml && git" in outcome.outcome_lines([], ["dvc.lock"])[2]
    assert "git add" not in outcome.outcome_lines([], ["absent"])[2]


@pytest.mark.parametrize(
    ("file", "text", "arguments", "words"),
    [
        ("x", "", ["nope"], "nope"),
        ("x", "", ["goood"], "'goood' not found inside 'dvc.yaml' file; did you mean 'good'?"),
        ("x", "", ["--nope"], "unrecognized arguments: --nope. See elmo run --help"),
        ("dvc.yaml", "stages: [", [], "error: dvc.yaml:1: not valid YAML ("),
        ("params.yaml", "x: 1\n\ty: 2\n", ["bad"], "params.yaml:2: not valid YAML (found"),
        ("params.yaml", f"{MARK}\nx: 1\n", ["bad"], "params.yaml: holds the marks of a git"),
        ("dvc.lock", f"schema: '2.0'\n{MARK}\n", [], "dvc.lock: holds the marks of a git merge"),
        ("dvc.lock", "stages: {}\n", [], "dvc.lock: is damaged; delete it: what is unchanged"),
        ("dvc.yaml", "stages: {a: {cmdd: x}}", [], "dvc.yaml' validation failed"),
        ("params.yaml", "x: [", ["bad"], "params.yaml"),
        ("x", "", ["bad"], "error: mine"),
        ("x", "", ["killed"], "failed to run: kill -9 $$, exited with -9"),
    ],
)
@pytest.mark.slow
def test_what_dvc_refuses(
    stages: Path, file: str, text: str, arguments: list[str], words: str
) -> None:
    (stages / file).write_text(text)
    code, _, error = run(stages, *arguments)
    assert code == 1, error
    (line,) = error.splitlines()
    assert line.startswith("error: ") and words in line


@pytest.mark.hostile
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount")
    try:
        command = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
        subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, check=True)
        (tmp_path / "dvc.yaml").write_text(STAGES)
        with pytest.raises(OSError), (tmp_path / "fill").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        code, out, error = run(tmp_path, "good")
        assert (code, out) == (1, "")
        assert error.splitlines() == [
            "error: No space left on device; make room, and run the same command again"
        ]
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_dvc_has_not_been_started(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(STAGES)
    code, _, error = run(tmp_path)
    assert code == 1 and error.startswith("error: you are not inside of a DVC repository")
    assert error.count("\n") == 1
