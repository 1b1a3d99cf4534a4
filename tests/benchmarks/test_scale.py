"""The scale on paper: its formulas against measured figures, its tables as documented."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks import scale
from elmo.train.step import Stepper, WorkerGroup
from pipeline.cluster import workers
from tests.elmo.train import test_launches as launches

ROOT = Path(__file__).resolve().parents[2]


def test_a_tokens_multiplications_as_counted() -> None:
    counted = scale._result("training_steps")["mflop_a_token"] * 1e6
    # Counted are also those by zero: the filters of all widths are one product.
    assert 0.92 < scale.training_flop(scale.SMALL) / counted < 1


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


def test_requests_grow_with_the_shards_as_reckoned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "tasks", workers.tasks)  # which the benchmark replaces
    few, many = (scale.counted_requests(size) for size in scale.CHECKED)
    more = scale.CHECKED[1] - scale.CHECKED[0]
    for stage, each in scale.REQUESTS.items():
        assert many[stage] - few[stage] == pytest.approx(each * more, rel=0.03)


def test_what_one_process_does_is_shorter_on_no_number_of_gpus() -> None:
    plans = [scale.stages(scale.CORPORA[2], scale.SMALL, scale.Costs(), n) for n in scale.GPUS]
    for stage, cause in [("corpus", "driver"), ("vocab", "driver"), ("tokenize", "requests")]:
        assert len({plan[stage][cause] for plan in plans}) == 1
        assert all(scale.hours(plan[stage]) >= plan[stage][cause] > 0 for plan in plans)


@pytest.fixture
def eight_workers() -> Iterator[None]:
    """This process as the first of eight; the others are pretended."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("cells", "projection"), [(128, 32), (512, 128)])
@pytest.mark.slow
def test_a_step_sends_what_the_formula_says(
    cells: int, projection: int, eight_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(scale.SMALL, cells=cells, projection=projection)
    filters = scale.FILTERS
    network = replace(
        launches.ORIGINAL,
        char_dim=16,
        filters=filters,
        highways=1,
        cells=cells,
        projection=projection,
    )
    monkeypatch.setattr(launches, "ORIGINAL", network)
    made = launches.stepper(rows=8, window=5, samples=50)
    made = Stepper(made.bilm, made.softmax, made.optimizer, made.settings, WorkerGroup(0, 8))
    sent: list[int] = []
    used: list[int] = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent.append(bucket.buffer().nbytes)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    made.body.register_comm_hook(None, hook)  # type: ignore[operator]
    all_reduce, update = dist.all_reduce, made.optimizer.update
    monkeypatch.setattr(dist, "all_reduce", lambda x: (sent.append(x.nbytes), all_reduce(x)))

    def moved(gradients: Any, *, step: int, word_rows: Any) -> None:
        used.append(len(word_rows["softmax.weight"]))
        update(gradients, step=step, word_rows=word_rows)

    monkeypatch.setattr(made.optimizer, "update", moved)
    window = launches.window(rows=1, time_steps=5)
    made.step(window, made.bilm.lstm.zero_state(1), step=0)
    ring = 2 * 7 / 8
    assert sum(sent) * ring == pytest.approx(scale.sent_bytes(shape, used[0], 8), rel=0.01)


@pytest.mark.parametrize("option", [[], ["--check"]])
def test_the_documented_tables_are_the_scripts(option: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.scale", *option]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
