"""The scale on paper: its formulas against measured figures, its tables as documented."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scale

ROOT = Path(__file__).resolve().parents[2]


def test_a_tokens_multiplications_as_counted() -> None:
    counted = scale._result("training_peak")["mflop_a_token"] * 1e6
    assert scale.training_flop(scale.SMALL) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "result"),
    [(scale.SMALL, "embedding_small"), (scale.ORIGINAL, "embedding_original")],
)
def test_the_measured_speed_is_a_share_of_the_peak(shape: scale.Shape, result: str) -> None:
    measured = scale._result(result)
    speed = measured["ours float32"]["tokens_per_second"]
    peak = measured["matrix_peak_gflops"]["float32"] * 1e9
    assert 0.6 < speed * scale.embedding_flop(shape) / peak < 1


def test_a_store_is_as_large_as_measured() -> None:
    seen = scale._result("features")["sides"]["store float16"]["bytes_per_token"]
    one = scale.Corpus("", 1, 1)
    assert scale.store_bytes(one, scale.ORIGINAL) == pytest.approx(seen, rel=0.01)


def test_more_gpus_cost_time_of_none_but_gradients() -> None:
    costs = scale.Costs()
    one, many = (scale.step_seconds(scale.ORIGINAL, costs, gpus) for gpus in (1, 64))
    assert one["gradients"] == 0 < many["gradients"]
    assert one["products"] == many["products"]


@pytest.mark.parametrize("option", [[], ["--check"]])
def test_the_documented_tables_are_the_scripts(option: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.scale", *option]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
