"""A figure says what it was measured on."""

import json
from pathlib import Path

import pytest

from benchmarks import machine
from elmo.train import machine_speed


def test_the_units_of_a_processor_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "model name\t: Some CPU\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_bf16\n"
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    machine.print_figures({"figure": 1})
    shown = json.loads(capsys.readouterr().out)
    assert shown["figure"] == 1 and shown["machine"]["processor"] == "Some CPU"
    assert shown["machine"]["units"] == ["AVX2", "AVX-512", "AVX-512 BF16", "AMX"]


@pytest.mark.parametrize(("bfloat16", "timed"), [(0.5, ["float32"]), (90, ["float32", "bfloat16"])])
def test_an_emulated_precision_is_not_timed(
    bfloat16: float, timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = machine_speed.MatrixSpeeds(float32_gflops=90, bfloat16_gflops=bfloat16)
    monkeypatch.setattr(machine_speed, "measure_matrix_speeds", lambda _device: speeds)
    assert machine.precisions() == timed
