"""The base of the models of all tasks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from elmo.tasks.features import LinearModels
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.metrics import Tally
from elmo.tasks.vectors import Vectors


class TaskModel(nn.Module):
    """The base of a task's model: it computes the loss, predicts, and tallies its predictions. The
    first score of the tally selects the best epoch.

    In its methods, `vectors` is a callable that takes sentences (token tuples) and returns their
    ELMo layers, an array (layers, tokens, dim) each; it is None without ELMo. `linear`, if given,
    predicts together with the network.
    """

    def __init__(self, inputs: TaskInputs, labels: Sequence[str]) -> None:
        super().__init__()
        self.inputs, self.labels = inputs, list(labels)
        self.label_ids = {label: k for k, label in enumerate(labels)}
        self.linear: LinearModels | None = None

    @staticmethod
    def labels_of(examples: Sequence[Any]) -> list[str]:
        """Return the labels in the training examples, which the model learns; none by default."""
        return []

    def loss(self, examples: Sequence[Any], vectors: Vectors | None) -> Tensor:
        """Return the loss of a batch of examples, without the penalty on the weights that mix
        ELMo's layers (`inputs.l2()`), which the training loop adds."""
        raise NotImplementedError

    def predict(self, examples: Sequence[Any], vectors: Vectors | None) -> list[Any]:
        """Return one prediction per example, in order: a label, tags, a span or clusters."""
        return [prediction for prediction, _ in self.answer(examples, vectors)]

    def answer(self, examples: Sequence[Any], vectors: Vectors | None) -> list[tuple[Any, Any]]:
        """Return one prediction per example, each with the scores that `describe` takes."""
        raise NotImplementedError

    def tally(self, examples: Sequence[Any], predictions: Sequence[Any]) -> Tally:
        """Return the tally of the task's metric over labelled examples and their predictions."""
        raise NotImplementedError

    def describe(self, example: Any, prediction: Any, scores: Any = None) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON, with the scores that `answer` returns, if
        given."""
        raise NotImplementedError
