"""Semantic roles: deep interleaved LSTMs with highway connections (He et al. 2017).

[x; ELMo; a predicate indicator] → LSTM layers that read forward and backward in turn, each over the
one below → [h; ELMo] → a softmax over BIO tags for each token; no CRF. Decoding is Viterbi over
log-probabilities, where I-X may follow only B-X or I-X.

Shapes: B predicates, T tokens, W width of x, D width of other vectors, H hidden, K tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Predicate
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.metrics import Tally, predicate_arguments, tally_span_f1
from elmo.tasks.model import TaskModel
from elmo.tasks.modules import (
    FORBIDDEN_SCORE,
    describe_spans,
    pad_labels,
    path_probabilities,
    reorder_tokens,
    reversed_indices,
    viterbi_decode,
)
from elmo.tasks.schemes import lenient_spans
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors

INDICATOR_DIM = 100


class HighwayLSTM(nn.Module):
    """An LSTM that reads in one direction, with a highway connection around it.

    A gate r mixes its usual output, o ∘ tanh c, with a linear map of its input, Wx: out = r ∘ (o ∘
    tanh c) + (1 − r) ∘ Wx. Dropout of the state uses one mask per sentence.
    """

    def __init__(self, width: int, hidden: int, *, dropout: float, backward: bool) -> None:
        super().__init__()
        self.hidden, self.dropout, self.backward = hidden, dropout, backward
        self.input = nn.Linear(width, 6 * hidden, bias=False)
        self.state = nn.Linear(hidden, 5 * hidden)
        for weight, blocks in ((self.input.weight, 6), (self.state.weight, 5)):
            for block in weight.data.chunk(blocks):
                nn.init.orthogonal_(block)
        nn.init.zeros_(self.state.bias)
        self.state.bias.data[hidden : 2 * hidden] = 1.0  # the forget gate

    def forward(self, x_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        """Read inputs (B, T, D); return outputs (B, T, H), 0 where masked.

        With `backward`, each sentence is read from its last token to its first; the outputs are in
        the order of the text.
        """
        order_BT = reversed_indices(mask_BT) if self.backward else None
        if order_BT is not None:
            x_BTD = reorder_tokens(x_BTD, order_BT)
        H = self.hidden
        gates_BT5H, carry_BTH = self.input(x_BTD).split([5 * H, H], -1)
        h_BH = c_BH = x_BTD.new_zeros(len(x_BTD), H)
        dropout_BH = nn.functional.dropout(torch.ones_like(h_BH), self.dropout, self.training)
        outputs = []
        for gates_B5H, carry_BH in zip(gates_BT5H.unbind(1), carry_BTH.unbind(1), strict=True):
            gates_B5H = gates_B5H + self.state(h_BH * dropout_BH)
            gates_B4H, candidate_BH = gates_B5H.split([4 * H, H], -1)
            i, f, o, r = gates_B4H.sigmoid().chunk(4, -1)
            c_BH = f * c_BH + i * candidate_BH.tanh()
            h_BH = torch.lerp(carry_BH, o * c_BH.tanh(), r)
            outputs.append(h_BH)
        h_BTH = torch.stack(outputs, 1)
        if order_BT is not None:
            h_BTH = reorder_tokens(h_BTH, order_BT)
        return h_BTH * mask_BT.unsqueeze(-1)


class RolesModel(TaskModel):
    """A model that finds the arguments of one predicate of a sentence, as BIO tags, which are
    `labels`."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        self.indicator = nn.Embedding(2, INDICATOR_DIM)
        width = inputs.width + INDICATOR_DIM
        self.layers = nn.ModuleList(
            HighwayLSTM(
                settings.hidden if layer else width,
                settings.hidden,
                dropout=settings.dropout,
                backward=layer % 2 == 1,
            )
            for layer in range(settings.depth)
        )
        self.tag = nn.Linear(settings.hidden + inputs.output_width, len(labels))

    @staticmethod
    def labels_of(examples: Sequence[Predicate]) -> list[str]:
        """Return the tags of the training examples: O, and B- and I- of each role."""
        names = {tag[2:] for example in examples for tag in example.tags or () if tag != "O"}
        return ["O", *(f"{kind}-{name}" for name in sorted(names) for kind in "BI")]

    def loss(self, examples: Sequence[Predicate], vectors: Vectors | None) -> Tensor:
        """Return the cross-entropy, averaged over each sentence's tokens, then over sentences."""
        scores_BTK, mask_BT = self._scores(examples, vectors)
        rows = [[self.label_ids[tag] for tag in example.tags or ()] for example in examples]
        tags_BT = pad_labels(rows, mask_BT)
        losses_BT = nn.functional.cross_entropy(scores_BTK.mT, tags_BT, reduction="none")
        return ((losses_BT * mask_BT).sum(1) / mask_BT.sum(1)).mean()

    @torch.inference_mode()
    def answer(
        self, examples: Sequence[Predicate], vectors: Vectors | None
    ) -> list[tuple[list[str], list[float]]]:
        """Return the BIO tags of each predicate's sentence, and the probability of each tag."""
        scores_BTK, mask_BT = self._scores(examples, vectors)
        start_K = torch.tensor([FORBIDDEN_SCORE * (tag[0] == "I") for tag in self.labels])
        transitions_KK = torch.tensor(
            [
                [FORBIDDEN_SCORE * (b[0] == "I" and a[2:] != b[2:]) for b in self.labels]
                for a in self.labels
            ]
        )
        ends_K = torch.zeros(len(self.labels))
        paths = viterbi_decode(scores_BTK.log_softmax(-1), mask_BT, transitions_KK, start_K, ends_K)
        rows = scores_BTK.softmax(-1).cpu()
        return [
            ([self.labels[k] for k in path], path_probabilities(row, path))
            for path, row in zip(paths, rows, strict=True)
        ]

    def tally(self, examples: Sequence[Predicate], predictions: Sequence[list[str]]) -> Tally:
        """Return the tally of the F1 of arguments, counted as srl-eval.pl does."""
        gold = [example.nested or lenient_spans(example.tags or ()) for example in examples]
        return tally_span_f1(
            [predicate_arguments(spans) for spans in gold],
            [predicate_arguments(lenient_spans(tags)) for tags in predictions],
        )

    def describe(
        self, example: Predicate, prediction: list[str], scores: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON: the tokens, the predicate, the BIO tags,
        and the arguments as spans, each with the lowest score of its tags."""
        arguments = describe_spans(lenient_spans(prediction), scores)
        return {
            "tokens": list(example.tokens),
            "predicate": example.predicate,
            "tags": prediction,
            "arguments": [span for span in arguments if span["label"] not in ("V", "C-V")],
        }

    def _scores(
        self, examples: Sequence[Predicate], vectors: Vectors | None
    ) -> tuple[Tensor, Tensor]:
        batch = self.inputs([example.tokens for example in examples], vectors)
        rows = [[int(k == e.predicate) for k in range(len(e.tokens))] for e in examples]
        h_BTD = torch.cat([batch.x_BTW, self.indicator(pad_labels(rows, batch.mask_BT))], -1)
        for layer in self.layers:
            h_BTD = layer(h_BTD, batch.mask_BT)
        return self.tag(batch.join_elmo(h_BTD)), batch.mask_BT
