"""The measurements on a GPU run to their end on a CPU, at small sizes."""

import json
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from tests.elmo.run_job import sentences

RUN = subprocess.run


def run_in_process(command: list[str], *arguments: Any, **named: Any) -> Any:
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
    monkeypatch.setattr(gpu.subprocess, "run", run_in_process)
    monkeypatch.setenv("ELMO_COMPILE", "0")
    monkeypatch.setattr(gpu, "WARM_UP", 2)
    text = tmp_path / "text"
    text.write_text("".join(" ".join(line) + "\n" for line in sentences(140)))

    def run(*options: str) -> Any:
        command = ["python", "-m", "benchmarks.gpu", str(text), *options]
        return json.loads(run_in_process(command).stdout)

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
    ]
    assert {"training, tiny, bfloat16, 2 rows", "embedding, tiny, bfloat16"} <= figures.keys()
    for name, row in figures.items():
        if name.startswith(("training", "embedding")):
            assert row["tokens_per_second"] > 0
        if name.startswith("twice"):
            assert row["equal"]
    assert len(list((tmp_path / "profile").iterdir())) == 6
