"""The measurements on a GPU run to their end on a CPU, at small sizes."""

import json
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import pytest

from benchmarks import gpu
from elmo.model.embedder import Embedder
from tests.elmo.run_job import NETWORK, TRAINING, make_job, sentences

RUN = subprocess.run


def run_here(command: list[str], *arguments: Any, **named: Any) -> Any:
    """Run a measurement in this process instead of one of its own, which would take seconds."""
    if "benchmarks.gpu" not in command:  # what a library asks for
        return RUN(command, *arguments, **named)
    output = StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(output):
        patched.setattr(sys, "argv", command[2:])
        gpu.main()
    return subprocess.CompletedProcess(command, 0, output.getvalue())


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the script with some options and returns its figures."""
    monkeypatch.setattr(gpu.subprocess, "run", run_here)
    monkeypatch.setenv("ELMO_COMPILE", "0")
    monkeypatch.setattr(gpu, "WARM", 2)
    text, project = tmp_path / "text", tmp_path / "project"
    text.write_text("".join(" ".join(line) + "\n" for line in sentences(140)))
    job = make_job(project)
    (project / "data" / "vocab").mkdir(parents=True)
    (project / "shards").rename(project / "data" / "general")
    (project / "data" / "shards").mkdir()
    (project / "data" / "general").rename(project / "data" / "shards" / "general")
    job.vocabulary.save(project / "data" / "vocab")
    job.characters.save(project / "data" / "vocab" / "characters.json")
    network = {name: value for name, value in asdict(NETWORK).items() if name != "input_words"}
    params = {"pretrain": {"network": network, "training": asdict(TRAINING)}}
    (project / "params.yaml").write_bytes(msgspec.yaml.encode(params))

    def run(*options: str) -> Any:
        pieces = ["--project", str(project), "--pieces", str(tmp_path / "pieces")]
        command = ["python", "-m", "benchmarks.gpu", str(text), *pieces, *options]
        return json.loads(run_here(command).stdout)

    return run


def test_every_measurement_comes_to_its_end(
    measure: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--networks tiny --rows 2 4 --steps 2 --sentences 9 --words 5".split()
    figures = measure(*small, "--profile", str(tmp_path / "profile"))
    shown = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[0] == "{"]
    del figures["machine"]
    assert {name: row for line in shown for name, row in line.items()} == figures
    assert [name.split(",")[0] for name in figures] == [
        *(2 * ["peak", "training", "training", "embedding", "twice"]),
        "training",
        "model",
    ]
    for name, row in figures.items():
        if name.startswith(("training", "embedding")):
            assert row["tokens_per_second"] > 0
        if name.startswith("twice"):
            assert row["equal"]
    assert len(list((tmp_path / "profile").iterdir())) == 6
    model = Embedder.load(tmp_path / "project" / "model")
    assert model.embed([["au", "av"]])[0].shape == (3, 2, 16)


def test_a_training_goes_on_from_the_pieces_that_came_back(measure: Any, tmp_path: Path) -> None:
    for step in (1, 2):  # no more than one step fits in the time that is left
        figures = measure("--networks", "--seconds", str(gpu.SAVING))
        assert figures["model, , bfloat16, 0 rows"]["step"] == step
        rmtree(tmp_path / "project" / "job")
    figures = measure("--networks")
    assert figures["model, , bfloat16, 0 rows"]["finished"]
