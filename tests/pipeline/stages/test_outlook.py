"""What a run will take, said once its tokens are known: from steps timed here, where it matters."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elmo.train import step_speed
from elmo.train.step_speed import StepSeconds
from pipeline.settings import params as settings
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import Params
from pipeline.stages import outlook

ROOT = Path(__file__).resolve().parents[3]
HERE = Cluster(cpus=2)
BILLION = 10**9


@pytest.fixture
def params() -> Params:
    return settings.load(ROOT / "params.yaml")


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was timed; a step of 1,280 tokens takes a second in bfloat16, two in float32."""
    asked: list[Any] = []

    def seconds(*given: Any, **named: Any) -> StepSeconds:
        asked.append((given, named))
        return StepSeconds(2.0, 1.0, 1280)

    monkeypatch.setattr(step_speed, "cached_step_seconds", seconds)
    yield asked


def ahead(params: Params, text: str, tokens: int, home: Path, **of: Any) -> None:
    own = {"tokens": tokens, "train_tokens": tokens, "cluster": HERE} | of
    outlook.warn_of_long_work(text, params=params, home=home, **own)


def test_hours_are_those_of_the_timed_steps(
    params: Params, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ahead(params, "general", BILLION, tmp_path)
    hours = BILLION / 1280 * params.pretrain.training.epochs / 3600
    line = capsys.readouterr().err
    assert f"1,000,000,000 tokens take about {hours:,.0f} hours: 1,280 tokens/s" in line
    slow = replace(
        params,
        pretrain=replace(
            params.pretrain, training=replace(params.pretrain.training, precision="float32")
        ),
    )
    ahead(slow, "general", BILLION, tmp_path)
    assert f"about {2 * hours:,.0f} hours: 640 tokens/s" in capsys.readouterr().err
    pretrain = replace(params.pretrain, training=replace(params.pretrain.training, epochs=3))
    ahead(replace(params, pretrain=pretrain), "general", BILLION, tmp_path)
    assert f"tokens × 3 epochs take about {3 * hours:,.0f} hours" in capsys.readouterr().err
    ahead(params, "general", BILLION, tmp_path, cluster=replace(HERE, workers=4))
    assert f"about {hours / 4:,.0f} hours" in capsys.readouterr().err


def test_of_minutes_and_of_other_machines_nothing_is_said_or_timed(
    params: Params,
    tmp_path: Path,
    timed: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ahead(params, "general", 100_000, tmp_path)
    ahead(params, "domain", 100_000, tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    ahead(params, "general", BILLION, tmp_path)
    assert capsys.readouterr().err == "" and not timed


def test_vectors_are_held_against_the_disk(
    params: Params,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Five gigabytes of text, a billion tokens of two vectors of 256 float16: a terabyte."""
    monkeypatch.setattr(outlook, "free_bytes", lambda home: 200 * BILLION)
    ahead(params, "domain", BILLION, tmp_path)
    tuning, embedding, room = capsys.readouterr().err.splitlines()
    assert "finetune: 1,000,000,000 tokens" in tuning
    assert "features: 1,000,000,000 tokens take up to 217 hours" in embedding
    assert "will take 1024.0 GB, 200.0 GB are free; to make it less, set features.layers" in room
    assert "(512.0 GB) or features.dtype to int8 (half" in room and "corpus.domain" in room
    monkeypatch.setattr(outlook, "free_bytes", lambda home: 11_000 * BILLION)
    ahead(params, "domain", BILLION, tmp_path)
    assert "are free" not in capsys.readouterr().err


def test_a_disk_is_asked_for_the_room_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert outlook.free_bytes(tmp_path / "a" / "b") > 0


def test_a_timed_step_knows_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Params
) -> None:
    """Those of `rows` × the time steps that were timed."""
    import torch

    monkeypatch.undo()
    network = replace(params.pretrain.network, char_dim=2, filters=((1, 2),), cells=4, projection=2)
    training = replace(params.pretrain.training, rows=4, window=3, samples=8)
    measured = step_speed.measure_step_seconds(network, training, torch.device("cpu"))
    assert measured.tokens == 12
