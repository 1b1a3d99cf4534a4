"""The base of the models of all tasks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from elmo.tasks.features import LinearModels
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.metrics import Tally
from elmo.tasks.vectors import Vectors


class TaskModel(nn.Module):
    """The base of a task's model, which computes its loss, predicts, and counts how often it is
    right. The first score of its tally decides which epoch is best.

    In its methods, `vectors` is a function from sentences (token tuples) to their ELMo layers, an
    array (layers, tokens, dim) each; it is None if the model uses none.
    `linear`, if given, answers beside the trained network.
    """

    def __init__(self, inputs: TaskInputs, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.label_ids = {label: k for k, label in enumerate(labels)}
        self.linear: LinearModels | None = None

    @staticmethod
    def labels_of(examples: Sequence[Any]) -> list[str]:
        """Return the labels that a model learns from the training examples; none by default."""
        return []

    def loss(self, examples: Sequence[Any], vectors: Vectors | None) -> Tensor:
        """Return the loss of a batch of examples, without the penalty on the weights that mix
        ELMo's layers (`inputs.l2()`), which the training loop adds."""
        raise NotImplementedError

    def predict(self, examples: Sequence[Any], vectors: Vectors | None) -> list[Any]:
        """Return one prediction per example, in order: a label, tags, a span or clusters."""
        return [prediction for prediction, _ in self.answer(examples, vectors)]

    def answer(self, examples: Sequence[Any], vectors: Vectors | None) -> list[tuple[Any, Any]]:
        """Return one prediction per example, each with its scores, which `describe` reads."""
        raise NotImplementedError

    def tally(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Tally:
        """Return the tally of the task's metric over labelled examples, given a prediction of
        `predict` for each."""
        raise NotImplementedError

    def describe(self, example: Any, prediction: Any, scores: Any = None) -> dict[str, Any]:
        """Return a prediction for an example, with the scores of `answer` if given, as a dictionary
        that can be written as JSON."""
        raise NotImplementedError
