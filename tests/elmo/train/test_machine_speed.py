"""The hint is given where it pays, and only there."""

from pathlib import Path

import pytest
import torch

from elmo.train import machine_speed
from elmo.train.machine_speed import gflops, hint


def test_the_machine_is_measured_in_both_precisions() -> None:
    found = gflops(torch.device("cpu"))
    assert set(found) == {"float32_gflops", "bfloat16_gflops"}
    assert all(0 < value < 1e7 for value in found.values())


def test_a_hint_is_given_where_the_other_precision_is_clearly_faster() -> None:
    speeds = {"float32_gflops": 200.0, "bfloat16_gflops": 800.0}
    told = hint("float32", speeds)
    assert told is not None and "4.0 × as fast in bfloat16 as in float32" in told
    assert hint("bfloat16", speeds) is None
    assert hint("float32", {"float32_gflops": 200.0, "bfloat16_gflops": 220.0}) is None
    slow = hint("bfloat16", {"float32_gflops": 200.0, "bfloat16_gflops": 50.0})
    assert slow is not None and "as fast in float32" in slow


@pytest.mark.parametrize(
    ("text", "emulates"),
    [
        ("processor : 0\nflags\t\t: fpu avx2 avx512f\n", True),
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16\n", False),
        ("processor : 0\nflags\t\t: fpu amx_tile amx_bf16\n", False),
        ("processor : 0\nFeatures\t: fp asimd bf16\n", False),
        ("processor : 0\nFeatures\t: fp asimd\nmodel name : bf16\n", True),
    ],
)
def test_a_processor_without_bfloat16_is_known_by_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, emulates: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine_speed, "_CPU_INFO", tmp_path / "cpuinfo")
    assert machine_speed.emulates_bfloat16() is emulates


def test_without_flags_a_product_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_speed, "_CPU_INFO", tmp_path / "absent")
    for bfloat16, emulates in ((5.0, True), (95.0, False)):
        speeds = {"float32_gflops": 100.0, "bfloat16_gflops": bfloat16}
        monkeypatch.setattr(machine_speed, "gflops", lambda device, speeds=speeds: speeds)
        assert machine_speed.emulates_bfloat16() is emulates
