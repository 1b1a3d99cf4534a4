"""`elmo run`: what DVC refuses is one line and exit code 1, wrong usage too."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.project import outcome, repro
from tests.pipeline.command_line import ROOT

STAGES = """stages:
  good: {cmd: python -c "print('made')", always_changed: true}
  bad: {cmd: "python -c \\"import sys; sys.exit('error: mine')\\"", params: [x]}
  killed: {cmd: kill -9 $$}
"""
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
    time.sleep(600)

cli.run_cli(stages)
"""


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh", ""])
@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGTERM), (os.killpg, signal.SIGINT)],
)
def test_an_interrupted_run_ends_its_stage_and_says_so_once(
    project: Path, send: Callable[[int, int], None], number: int, shell: str
) -> None:
    """The signal comes to the run alone, or to the stage too, as a terminal sends it."""
    (project / "dvc.yaml").write_text(f"stages: {{one: {{cmd: {sys.executable} long.py long}}}}\n")
    (project / "long.py").write_text(LONG)
    (project / "running").unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "run"],
        cwd=project,
        env=ENVIRONMENT | {"SHELL": shell},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (project / "running").exists() and process.poll() is None:
        time.sleep(0.05)
    send(process.pid, number)
    _, error = process.communicate()  # the stage has ended too: it held the pipe
    assert process.returncode == 1
    assert error == "error: interrupted; run the same command again to go on\n"


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
        "scored: perplexity 96.7 on held-out general text; 92.6 on domain text, 164.3 before "
        "fine-tuning; ner f1 0.695 with ELMo, 0.600 without ELMo"
    )
    assert following == (
        "next:   open report/index.html; keep these numbers: git add numbers && git commit -m "
        "Results; compare runs: dvc metrics diff"
    )


@pytest.mark.parametrize(
    ("file", "text", "arguments", "words"),
    [
        ("x", "", ["nope"], "nope"),
        ("x", "", ["goood"], "'goood' not found inside 'dvc.yaml' file; did you mean 'good'?"),
        ("x", "", ["--nope"], "unrecognized arguments: --nope. See elmo run --help"),
        ("dvc.yaml", "stages: [", [], "unable to read: 'dvc.yaml'"),
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
