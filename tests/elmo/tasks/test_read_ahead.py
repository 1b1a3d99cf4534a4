"""A task's vectors are read by another thread, and each loss while the next step is computed."""

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elmo.errors import ElmoError
from elmo.tasks import train
from elmo.tasks.examples import Tagged
from elmo.tasks.train import TaskProgress, batches_with_vectors

SENTENCES = [("he", "has"), ("a", "gift"), ("he", "has"), ("for",)]


def tagged() -> list[Tagged]:
    return [Tagged("", tokens, None) for tokens in SENTENCES]


def test_the_vectors_of_a_batch_are_read_once_by_another_thread() -> None:
    asked: list[Any] = []
    threads = set()

    def vectors(sentences: Sequence[Any]) -> list[Any]:
        threads.add(threading.current_thread())
        asked.append(list(sentences))
        return [np.full((1, len(s), 2), len(s[0]), np.float16) for s in sentences]

    batches = [tagged()[:3], tagged()[3:]]
    for given, (batch, read) in zip(batches, batches_with_vectors(batches, vectors), strict=True):
        assert batch == given and read is not None
        found = read([example.tokens for example in batch])
        assert [one.shape[1] for one in found] == [len(e.tokens) for e in batch]
    assert asked == [[("he", "has"), ("a", "gift")], [("for",)]]
    assert threading.current_thread() not in threads
    assert [read for _, read in batches_with_vectors(batches, None)] == [None, None]


class Losing(nn.Module):
    """A model whose loss is what it is told."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.losses = losses
        self.inputs: Any = SimpleNamespace(l2=lambda: torch.zeros(()))

    def loss(self, examples: Sequence[Any], vectors: Any) -> Tensor:
        return self.weight * 0 + self.losses[examples[0]]


def mean_loss(losses: list[float]) -> float:
    """The mean loss of an epoch of three batches."""
    run: Any = train._TaskTraining.__new__(train._TaskTraining)
    run.model = Losing(losses)
    run.parameters, run.average = [run.model.weight], []
    run.optimizer = torch.optim.SGD([run.model.weight], 0.1)
    run.settings = SimpleNamespace(gradient_norm=0.0, average=0.0)
    return run.train_epoch(TaskProgress(lr=0.1), [[0], [1], [2]], None)


def test_each_loss_is_read_though_after_the_next_step() -> None:
    assert mean_loss([0.1, 0.2, 0.3]) == pytest.approx(0.2)
    for k in range(3):
        with pytest.raises(ElmoError, match="the loss is nan in epoch 1; lower lr"):
            mean_loss([float("nan") if k == number else 0.1 for number in range(3)])
