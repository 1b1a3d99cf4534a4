"""`auto` goes by steps of the network, timed once in a process of their own."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elmo.errors import ElmoError
from elmo.settings import NetworkSettings
from elmo.train import step_speed
from elmo.train.step_speed import (
    StepSeconds,
    cached_step_seconds,
    measure_step_seconds,
    read_network,
    training_precision,
)
from tests.elmo.run_job import NETWORK, TRAINING

CPU = torch.device("cpu")
SHAPE = NetworkSettings(
    **{name: getattr(NETWORK, name) for name in NetworkSettings.__dataclass_fields__}
)
LARGE = replace(SHAPE, cells=2048, projection=128)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What processes were given; each prints other seconds."""
    made: list[Any] = []

    def run(command: list[str], *, input: str, **options: Any) -> Any:
        made.append(json.loads(input) | {"threads": options["env"]["OMP_NUM_THREADS"]})
        text = f'a warning\n{{"float32_s": 1.0, "bfloat16_s": {1 / len(made)}}}\n'
        return subprocess.CompletedProcess(command, 0, text, "")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(step_speed, "subprocess", SimpleNamespace(run=run))
    return made


def seconds(network: NetworkSettings = LARGE, threads: int = 2, **changes: Any) -> StepSeconds:
    training = replace(TRAINING, rows=64, window=20, **changes)
    return cached_step_seconds(network, training, device=CPU, threads=threads)


def test_steps_are_timed_once_for_each_network_size_of_step_and_number_of_threads(
    runs: list[Any],
) -> None:
    assert [seconds().bfloat16_speedup for _ in range(3)] == [1.0] * 3
    assert seconds(replace(LARGE, cells=1024)).bfloat16_speedup == 2.0
    assert seconds(threads=1).bfloat16_speedup == 3.0
    assert seconds(samples=99).bfloat16_speedup == 4.0
    assert seconds(epochs=7).bfloat16_speedup == 1.0  # which change nothing of a step's time
    assert [run["threads"] for run in runs] == ["2", "2", "1", "2"]


def test_the_process_runs_wherever_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_speed, "SMALL", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    training = replace(TRAINING, rows=4, window=3)
    measured = cached_step_seconds(SHAPE, training, device=CPU, threads=1)
    assert measured.float32_s > 0 and measured.bfloat16_s > 0
    assert len(list((tmp_path / "cache" / "elmo").iterdir())) == 1


def test_a_step_that_takes_no_time_is_not_timed(runs: list[Any]) -> None:
    assert seconds(SHAPE).bfloat16_speedup == 1.0 and not runs


def test_a_process_that_fails_is_an_error_of_one_line(
    runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess([], 1, "", "Traceback …\nMemoryError: no room\n")
    failing = SimpleNamespace(run=lambda *given, **named: done)
    monkeypatch.setattr(step_speed, "subprocess", failing)
    with pytest.raises(ElmoError, match=r"timed: MemoryError: no room; choose float32 or bfloat16"):
        seconds()


def test_the_faster_precision_is_chosen() -> None:
    assert training_precision(StepSeconds(1.2, 1.0)) == "bfloat16"
    assert (
        training_precision(StepSeconds(1.0, 1.0))
        == training_precision(StepSeconds(1.0, 9.0))
        == "float32"
    )


@pytest.mark.parametrize("change", [{}, {"softmax": "full", "reset": "never"}])
def test_steps_are_taken_in_both_precisions(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[str, int]] = []
    step = step_speed.Stepper.step

    def counted(self: Any, prepared: Any, *given: Any, **named: Any) -> Any:
        taken.append((self.settings.precision, prepared.index_STB.shape[1]))
        return step(self, prepared, *given, **named)

    monkeypatch.setattr(step_speed.Stepper, "step", counted)
    measured = measure_step_seconds(SHAPE, replace(TRAINING, rows=4, window=3, **change), CPU)
    assert measured.float32_s > 0 and measured.bfloat16_s > 0
    assert taken.count(("float32", 3)) == taken.count(("bfloat16", 3)) == 4  # one to compile
    taken.clear()
    monkeypatch.setattr(step_speed, "LONGEST", 1e-9)
    measure_step_seconds(SHAPE, replace(TRAINING, rows=4, window=30, **change), CPU)
    assert {steps for _, steps in taken} == {2}


def test_the_shape_of_a_model(tiny_model_folder: Path) -> None:
    network = read_network(tiny_model_folder)
    assert network.cells > 0 and isinstance(network.filters, tuple)
