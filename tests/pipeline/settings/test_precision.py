"""Every command that takes a precision settles it before work starts."""

import os
import platform
from pathlib import Path

import pytest
import torch

from elmo.io.location import Location
from elmo.settings import Precision
from elmo.train import machine_speed
from elmo.train.machine_speed import MatrixSpeeds
from pipeline.settings import params
from pipeline.settings.cluster import Cluster
from pipeline.settings.precision import forget_precision, with_chosen_precision
from tests.pipeline.command_line import ROOT, elmo
from tests.pipeline.settings.test_params import changed
from tests.programs import python

EMULATES, HAS_UNITS = MatrixSpeeds(100.0, 0.5), MatrixSpeeds(100.0, 500.0)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def measured(monkeypatch: pytest.MonkeyPatch, speeds: MatrixSpeeds) -> None:
    monkeypatch.setattr(machine_speed, "measure_matrix_speeds", lambda device: speeds)


TRAINING = ["--curves", "curves", "--work", "runs"]
# Each command with a precision, on inputs that are missing, and the setting that it names.
COMMANDS = {
    "pretrain": (["a", "b", "out", *TRAINING], "pretrain.training.precision"),
    "finetune": (["a", "b", "c", "out", *TRAINING], "finetune.training.precision"),
    "features": (["a", "b", "out", "--work", "runs"], "features.precision"),
    "embed": (["a", "--input", "-", "--output", "out.npz"], "--precision"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_auto_is_settled_before_anything_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, setting = COMMANDS[name]
    if setting == "--precision":
        arguments = [*arguments, setting, "auto"]
    else:
        arguments = [*arguments, "--params", str(changed(tmp_path, setting, "auto"))]
    for speeds, chosen in ((EMULATES, "float32"), (HAS_UNITS, "bfloat16")):
        measured(monkeypatch, speeds)
        details: list[str] = []
        monkeypatch.setattr("pipeline.terminal.progress.log_detail", details.append)
        _, _, error = elmo(name, *arguments, cwd=tmp_path)
        said = details[0] if details else error  # of the setting that is an option
        assert f"{setting}: auto chose {chosen}" in said
        assert ("auto chose" in error) == (name == "embed")


def test_auto_stays_what_it_was_while_there_is_work_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, work = params.load(ROOT / "params.yaml"), Location(tmp_path)
    said: list[str] = []

    def choose(speeds: MatrixSpeeds, *, gpu: bool = False) -> Precision:
        measured(monkeypatch, speeds)
        params = with_chosen_precision(
            given, "pretrain", cluster=Cluster(gpu=gpu), work=work, say=said.append
        )
        return params.pretrain.training.precision

    assert choose(EMULATES) == "float32"
    assert choose(HAS_UNITS) == "bfloat16"  # the first had begun nothing
    (tmp_path / "pretrain" / "0123").mkdir(parents=True)
    assert choose(EMULATES) == "bfloat16" and "unfinished" in said[-1]
    if not torch.cuda.is_available():
        lines = len(said)
        assert choose(EMULATES, gpu=True) == "bfloat16" and len(said) == lines
        assert choose(EMULATES) == "float32"  # a GPU's choice says nothing of this processor
    forget_precision(work, "pretrain")
    assert choose(HAS_UNITS) == "bfloat16" and "unfinished" not in said[-1]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's limit is one of x86-64")
@pytest.mark.slow
def test_a_processor_without_bfloat16_is_measured_as_such() -> None:
    """oneDNN is kept from AVX-512 and AMX: a product in bfloat16 is then really emulated."""
    program = (
        "from pipeline.settings.precision import choose_precision\n"
        "print(choose_precision('auto', setting='x', device='cpu', say=lambda line: None))\n"
    )
    assert python(program, env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}) == "float32\n"
