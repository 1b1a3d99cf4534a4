"""The base of models that predict one label: the loss, the prediction and its score.

Shapes: B examples, K labels.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Classified, Pair
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.metrics import Tally, tally_accuracy
from elmo.tasks.model import TaskModel
from elmo.tasks.vectors import Vectors

LabelledText = Classified | Pair


class LabelModel(TaskModel):
    """The base of a model that gives each example one of `labels`; `scores` returns their logits.

    `class_weights` are the weights of the labels in the loss; None means equal weights.
    """

    def __init__(self, inputs: TaskInputs, labels: Sequence[str]) -> None:
        super().__init__(inputs, labels)
        self.class_weights: Tensor | None = None

    @staticmethod
    def labels_of(examples: Sequence[LabelledText]) -> list[str]:
        """Return the distinct labels of the training examples."""
        return sorted({example.label for example in examples if example.label is not None})

    def balance_classes(self, train: Sequence[LabelledText]) -> None:
        """Weight each label in the loss by the inverse of its frequency in `train`."""
        counts = Counter(example.label for example in train)
        average = sum(counts.values()) / len(self.labels)
        self.class_weights = torch.tensor(
            [average / max(1, counts[label]) for label in self.labels]
        )

    def scores(self, examples: Sequence[Any], vectors: Vectors | None) -> Tensor:
        """Return the logits (B, K) of a batch of examples."""
        raise NotImplementedError

    def loss(self, examples: Sequence[LabelledText], vectors: Vectors | None) -> Tensor:
        """Return the cross-entropy of a batch, averaged over its examples by their weights."""
        scores_BK = self.scores(examples, vectors)
        label_ids = [self.label_ids[example.label or ""] for example in examples]
        weights = self.class_weights
        return nn.functional.cross_entropy(
            scores_BK,
            torch.tensor(label_ids).to(scores_BK.device),
            None if weights is None else weights.to(scores_BK),
        )

    @torch.inference_mode()
    def answer(
        self, examples: Sequence[LabelledText], vectors: Vectors | None
    ) -> list[tuple[str, list[float]]]:
        """Return the predicted label of each example, and the probability of each label."""
        scores_BK = self.scores(examples, vectors)
        if self.linear is not None:
            shares = self.linear.shares
            linear_BK = self.linear(examples, vectors)
            scores_BK = (shares.network * scores_BK.log_softmax(1) + linear_BK) / sum(shares)
        probability_rows = scores_BK.softmax(1).tolist()
        return [(self.labels[row.index(max(row))], row) for row in probability_rows]

    def describe(
        self, example: LabelledText, prediction: str, scores: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON: the tokens (or premise and hypothesis), the
        label, its probability, and the probabilities of all labels."""
        names = ("premise", "hypothesis") if isinstance(example, Pair) else ("tokens",)
        answer: dict[str, Any] = {name: list(getattr(example, name)) for name in names}
        answer["label"] = prediction
        if scores is not None:
            rounded_scores = [round(score, 4) for score in scores]
            score_by_label = dict(zip(self.labels, rounded_scores, strict=True))
            answer |= {"score": score_by_label[prediction], "scores": score_by_label}
        return answer

    def tally(self, examples: Sequence[LabelledText], predictions: Sequence[str]) -> Tally:
        """Return the tally of accuracy, with one unit per example."""
        return tally_accuracy([example.label for example in examples], predictions)
