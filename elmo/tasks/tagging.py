"""Sequence tagging: a biLSTM-CRF, as for named entities in section 4 of the paper; and POS.

[x; ELMo] → dropout → biLSTM → [h; ELMo] → dropout → a score for each tag; a linear-chain CRF over
them. The likelihood runs over all paths; only decoding follows the rules of BIOES.

Shapes: B sentences, T tokens, W width of x, D width of other vectors, K tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from elmo.tasks.examples import Span, Tagged
from elmo.tasks.inputs import EncodedBatch, TaskInputs
from elmo.tasks.metrics import Tally, tally_span_f1, tally_tag_accuracy
from elmo.tasks.model import TaskModel
from elmo.tasks.modules import (
    FORBIDDEN_SCORE,
    BidirectionalRNN,
    describe_spans,
    pad_labels,
    path_probabilities,
    tag_probabilities,
    viterbi_decode,
)
from elmo.tasks.schemes import detect_scheme, lenient_spans, may_follow
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors


class TaggingModel(TaskModel):
    """A model that tags each token of a sentence with one of `labels`."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        self.marks_spans = detect_scheme([labels]) == "bioes"
        self.dropout = nn.Dropout(settings.dropout)
        self.lstm = BidirectionalRNN(
            inputs.width, settings.hidden, depth=settings.depth, dropout=settings.dropout
        )
        self.scores = nn.Linear(2 * settings.hidden + inputs.output_width, len(labels))
        self.transitions_KK = nn.Parameter(torch.empty(len(labels), len(labels)))
        nn.init.xavier_normal_(self.transitions_KK)

    @staticmethod
    def labels_of(examples: Sequence[Tagged]) -> list[str]:
        """Return the distinct tags of the training examples."""
        return sorted({tag for example in examples for tag in example.tags or ()})

    def loss(self, examples: Sequence[Tagged], vectors: Vectors | None) -> Tensor:
        """Return −log p(tags | sentence), summed over the batch."""
        batch = self.inputs([example.tokens for example in examples], vectors)
        rows = [[self.label_ids[tag] for tag in example.tags or ()] for example in examples]
        tags_BT = pad_labels(rows, batch.mask_BT)
        emissions_BTK = self._emissions(batch)
        return -crf_log_likelihood(emissions_BTK, tags_BT, batch.mask_BT, self.transitions_KK).sum()

    def predict(self, examples: Sequence[Tagged], vectors: Vectors | None) -> list[list[str]]:
        """Return the tags of each sentence, one per token, in BIOES if they mark spans."""
        return [tags for tags, _ in self.answer(examples, vectors, with_scores=False)]

    @torch.inference_mode()
    def answer(
        self, examples: Sequence[Tagged], vectors: Vectors | None, *, with_scores: bool = True
    ) -> list[tuple[list[str], list[float]]]:
        """Return the tags of each sentence, as `predict` does, and, `with_scores`, the probability
        of each tag: the sum over all paths with this tag that BIOES allows."""
        batch = self.inputs([example.tokens for example in examples], vectors)
        penalties_KK, start_K, end_K = self._bioes_penalties()
        emissions_BTK, transitions_KK = self._emissions(batch).cpu(), self.transitions_KK.cpu()
        if self.linear is not None:
            shares = self.linear.shares
            linear_rows = self.linear(examples, vectors).cpu().split(batch.mask_BT.sum(1).tolist())
            linear_BTK = pad_sequence(linear_rows, batch_first=True)
            emissions_BTK = (shares.network * emissions_BTK + linear_BTK) / sum(shares)
            transitions_KK = transitions_KK * shares.network / sum(shares)
        transitions_KK = transitions_KK + penalties_KK
        crf_inputs = (emissions_BTK, batch.mask_BT.cpu(), transitions_KK, start_K, end_K)
        paths = viterbi_decode(*crf_inputs)
        rows = tag_probabilities(*crf_inputs) if with_scores else [None] * len(paths)
        return [
            ([self.labels[k] for k in path], [] if row is None else path_probabilities(row, path))
            for path, row in zip(paths, rows, strict=True)
        ]

    def tally(self, examples: Sequence[Tagged], predictions: Sequence[list[str]]) -> Tally:
        """Return the tally of span F1 and of the tags' accuracy, or of accuracy alone if the tags
        mark no spans; a unit is a sentence."""
        return tally_tags(examples, predictions, self.labels)

    def describe(
        self, example: Tagged, prediction: list[str], scores: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON: the tokens, the BIO tags, their scores and
        the spans they mark, each with the lowest score of its tags."""
        answer: dict[str, Any] = {"tokens": list(example.tokens), "tags": prediction}
        if scores is not None:
            answer["scores"] = [round(score, 4) for score in scores]
        if self.marks_spans:
            answer["tags"] = [_to_bio(tag) for tag in prediction]
            answer["spans"] = describe_spans(bioes_spans(prediction), scores)
        return answer

    def _emissions(self, batch: EncodedBatch) -> Tensor:
        h_BTD = self.lstm(self.dropout(batch.x_BTW), batch.mask_BT)
        return self.scores(self.dropout(batch.join_elmo(h_BTD)))

    def _bioes_penalties(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return penalties of transitions, first and last tags: 0 if BIOES allows them, else very
        negative."""
        if not self.marks_spans:
            K = len(self.labels)
            return torch.zeros(K, K), torch.zeros(K), torch.zeros(K)
        penalties = [
            [0.0 if may_follow(a, b) else FORBIDDEN_SCORE for b in self.labels] for a in self.labels
        ]
        start_penalties = [0.0 if may_follow(None, tag) else FORBIDDEN_SCORE for tag in self.labels]
        end_penalties = [0.0 if may_follow(tag, None) else FORBIDDEN_SCORE for tag in self.labels]
        return torch.tensor(penalties), torch.tensor(start_penalties), torch.tensor(end_penalties)


def tally_tags(
    examples: Sequence[Tagged], predictions: Sequence[list[str]], labels: Sequence[str]
) -> Tally:
    """Tally span F1 and the accuracy of the predicted tags, or accuracy alone if `labels`, the tags
    that the model knows, mark no spans.

    A unit is a sentence.
    """
    gold = [list(example.tags or ()) for example in examples]
    tag_tally = tally_tag_accuracy(gold, predictions)
    if detect_scheme([labels]) != "bioes":
        return tag_tally
    span_tally = tally_span_f1(
        [bioes_spans(tags) for tags in gold], [bioes_spans(tags) for tags in predictions]
    )
    return Tally(
        "tags", [(*a, *b) for a, b in zip(span_tally.counts, tag_tally.counts, strict=True)]
    )


def crf_log_likelihood(
    emissions_BTK: Tensor, tags_BT: Tensor, mask_BT: Tensor, transitions_KK: Tensor
) -> Tensor:
    """Return log p of each sentence's tags (sentences,): their score minus the log-sum-exp over all
    paths.

    `emissions_BTK` has the score of each tag for each token, `tags_BT` the tags' numbers, and
    `transitions_KK` the scores of neighbouring tags, from row to column.
    """
    score_B = emissions_BTK.gather(2, tags_BT.unsqueeze(2)).squeeze(2).mul(mask_BT).sum(1)
    moves_BT = transitions_KK[tags_BT[:, :-1], tags_BT[:, 1:]] * mask_BT[:, 1:]
    alpha_BK, *emission_rows = emissions_BTK.unbind(1)
    for t, emissions_BK in enumerate(emission_rows, 1):
        sums_BK = (alpha_BK.unsqueeze(2) + transitions_KK).logsumexp(1) + emissions_BK
        alpha_BK = torch.where(mask_BT[:, t : t + 1], sums_BK, alpha_BK)
    return score_B + moves_BT.sum(1) - alpha_BK.logsumexp(1)


def bioes_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of predicted BIOES tags; an I- or E- that continues nothing begins a
    span."""
    return lenient_spans([_to_bio(tag) for tag in tags])


def _to_bio(tag: str) -> str:
    return {"S": "B", "E": "I"}.get(tag[0], tag[0]) + tag[1:]
