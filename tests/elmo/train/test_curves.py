"""Curves: means of the steps since the last row, and each row once whatever was killed."""

import math
from pathlib import Path

import pytest
import torch

from elmo.io.location import Location
from elmo.train.curves import CURVES, Curves, StepSums
from elmo.train.step import StepFigures


def test_means_are_those_of_the_steps_since_the_last_report() -> None:
    means = StepSums()
    means.add(nats=40.0, predictions=10, norm=1.0, was_clipped=True)
    means.add(nats=20.0, predictions=5, norm=2.0, was_clipped=False)
    assert means.curve_row() == {
        "perplexity": pytest.approx(math.exp(2.0)),  # 60 nats of 2 × 15 predictions
        "gradient_norm": 1.5,
        "clipped": 0.5,
    }


def test_a_step_is_clipped_where_its_norm_is_above_a_limit() -> None:
    figures = torch.tensor([3.0, 1.0, 1.0])  # the norm, and both directions' nats
    assert [StepFigures(figures, 5, limit).was_clipped for limit in (0.0, 2.0, 4.0)] == [
        False,
        True,
        False,
    ]


def test_rows_after_the_checkpoint_that_training_resumes_from_are_written_again(
    tmp_path: Path,
) -> None:
    row = dict.fromkeys(CURVES["heldout.tsv"], 1.0)
    curves = Curves(Location(tmp_path))
    curves.resume(0)
    for step in (10, 20, 30):
        curves.add("heldout.tsv", row | {"step": step})
    curves.flush()
    with (tmp_path / "heldout.tsv").open("a") as file:
        file.write("4")  # of 40: torn by a kill
    curves = Curves(Location(tmp_path))
    curves.resume(20)
    curves.add("heldout.tsv", row | {"step": 20, "average": 2.5})  # of this step too
    curves.add("heldout.tsv", row | {"step": 30})
    curves.flush()
    header, *lines = (tmp_path / "heldout.tsv").read_text().splitlines()
    assert header.split("\t") == list(CURVES["heldout.tsv"])
    assert [line.split("\t")[0] for line in lines] == ["10", "20", "30"]
    assert lines[1].endswith("\t2.5")
    assert (tmp_path / "train.tsv").read_text() == "\t".join(CURVES["train.tsv"]) + "\n"
