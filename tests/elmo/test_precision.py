"""The hint is given where it pays, and only there."""

import torch

from elmo.precision import gflops, hint


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
