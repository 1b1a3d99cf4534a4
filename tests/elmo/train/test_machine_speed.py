"""A machine is measured once, and `auto` in embedding is what its products say."""

from pathlib import Path

import pytest
import torch

from elmo.train import machine_speed
from elmo.train.machine_speed import (
    MatrixSpeeds,
    faster_precision,
    matrix_speeds,
    measure_gflops,
)


def test_the_machine_is_measured_in_both_precisions() -> None:
    found = measure_gflops(torch.device("cpu"))
    assert set(found) == {"float32_gflops", "bfloat16_gflops"}
    assert all(0 < value < 1e7 for value in found.values())


def test_a_machine_is_measured_once_as_long_as_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[torch.device] = []

    def count(device: torch.device) -> dict[str, float]:
        measured.append(device)
        return {"float32_gflops": 100.0, "bfloat16_gflops": 100.0 * len(measured)}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_speed, "measure_gflops", count)
    cpu = torch.device("cpu")
    assert [matrix_speeds(cpu).bfloat16_gflops for _ in range(3)] == [100.0, 100.0, 100.0]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # other instructions, other speeds
    assert matrix_speeds(cpu).bfloat16_gflops == 200.0
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert matrix_speeds(cpu).bfloat16_gflops == 100.0
    assert len(measured) == 2
    (tmp_path / "file").write_text("")  # where no folder can be made
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [matrix_speeds(cpu).bfloat16_gflops for _ in range(2)] == [300.0, 400.0]


def test_auto_is_bfloat16_where_that_is_clearly_faster() -> None:
    assert faster_precision(MatrixSpeeds(100.0, 500.0)) == "bfloat16"
    assert faster_precision(MatrixSpeeds(100.0, 110.0)) == "float32"
    assert faster_precision(MatrixSpeeds(100.0, 0.4)) == "float32"


def test_a_product_too_slow_is_not_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def slow(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> float:
        rows.append(len(a))
        return 0.005 * len(a)  # as where it is emulated

    monkeypatch.setattr(machine_speed, "_seconds", slow)
    found = measure_gflops(torch.device("cpu"))
    assert set(rows) == {16}
    assert found["bfloat16_gflops"] == pytest.approx(2 * 1024 * 1024 / 0.005 / 1e9)
