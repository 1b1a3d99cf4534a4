"""A process prepares steps as a thread does, and ends with what it is for."""

import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from elmo.errors import ElmoError
from elmo.train.step import WorkerGroup
from elmo.train.step_input import StepPreparer, _receive_steps, read_ahead
from tests.elmo.train.test_loop import SETTINGS, job

pytestmark = pytest.mark.slow  # each test starts processes


def reading(folder: Path, **changes: Any) -> Any:
    """A function that reads a training's text ahead, in a thread or in a process."""
    made, workers = job(folder / "run", settings=replace(SETTINGS, **changes)), WorkerGroup()
    preparer = StepPreparer(
        made.settings,
        vocabulary_size=len(made.softmax.weight),
        layers=made.bilm.shape.layers + 1,
        rows=workers.own_rows(made.settings.rows),
        device=workers.device,
        pad=made.bilm.encoder.pad_to_few_shapes,  # type: ignore[union-attr]
        gather=None,
    )
    stream = made.stream("train", workers, epochs=1, seed=3)
    return partial(read_ahead, preparer, stream, stream.first_position(), step=4)


@pytest.mark.parametrize(
    "changes",
    [{"dropout": 0.1}, {"softmax": "full", "reset": "never"}, {"draws": "separate"}],
    ids=["dropout", "full softmax", "a draw for each direction"],
)
def test_a_process_prepares_the_same_steps(tmp_path: Path, changes: dict[str, Any]) -> None:
    read = reading(tmp_path, **changes)
    here, there = (list(read(uses_process=uses_process)) for uses_process in (False, True))
    assert len(here) == len(there) > 2
    for (expected, position_after), (found, found_position_after) in zip(here, there, strict=True):
        assert found_position_after() == position_after()
        for a, b in zip(tree_leaves(expected), tree_leaves(found), strict=True):
            assert type(a) is type(b)
            np.testing.assert_array_equal(a, b)


def test_an_error_of_the_process_is_raised_here(tmp_path: Path) -> None:
    read = reading(tmp_path)
    file = min((tmp_path / "shards").glob("train-*.arrow"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(ElmoError, match=file.name):
        list(read(uses_process=True))


def test_who_stops_early_leaves_no_process(tmp_path: Path) -> None:
    items = reading(tmp_path)(uses_process=True)
    next(items)
    assert len(multiprocessing.active_children()) == 1
    items.close()
    assert not multiprocessing.active_children()


def test_a_killed_process_is_said(tmp_path: Path) -> None:
    items = reading(tmp_path)(uses_process=True)
    next(items)
    (child,) = multiprocessing.active_children()
    os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(ElmoError, match="the text ended"):
        list(items)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\x09half"])
def test_a_process_that_ends_within_a_message_is_said(sent: bytes) -> None:
    receiving, sending = multiprocessing.Pipe(duplex=False)
    os.write(sending.fileno(), sent)  # the message's length, 9, and a part of it
    sending.close()
    with pytest.raises(ElmoError, match="the text ended"):
        next(_receive_steps(receiving, torch.device("cpu")))
