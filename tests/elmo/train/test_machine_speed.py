"""`auto` is what the speeds of products say."""

import pytest
import torch

from elmo.train import machine_speed
from elmo.train.machine_speed import MatrixSpeeds, choose_faster_precision, measure_matrix_speeds


def test_auto_is_bfloat16_where_that_is_clearly_faster() -> None:
    assert choose_faster_precision(MatrixSpeeds(100.0, 500.0)) == "bfloat16"
    assert choose_faster_precision(MatrixSpeeds(100.0, 110.0)) == "float32"
    assert choose_faster_precision(MatrixSpeeds(100.0, 0.4)) == "float32"


def test_a_product_too_slow_is_not_timed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []

    def slow(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> float:
        rows.append(len(a))
        return 0.005 * len(a)  # as where it is emulated

    monkeypatch.setattr(machine_speed, "_time_product", slow)
    found = measure_matrix_speeds.__wrapped__(torch.device("cpu"))
    assert set(rows) == {16}
    assert found.bfloat16_gflops == pytest.approx(2 * 1024 * 1024 / 0.005 / 1e9)
