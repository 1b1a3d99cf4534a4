"""Sentence pairs: the enhanced sequential inference model (ESIM) of Chen et al. 2017.

A shared biLSTM reads premise and hypothesis → [h; ELMo] → each token attends to the other
sentence → [a; ã; a − ã; a ∘ ã] → a ReLU layer → a shared composition biLSTM → mean and maximum of
each side → a hidden layer → labels.

Shapes: B pairs, T tokens of premises, U of hypotheses, W width of x, D width of other vectors,
K labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Pair, Tokens
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.labels import LabelModel
from elmo.tasks.modules import (
    BidirectionalRNN,
    SharedDropout,
    masked_max,
    masked_mean,
    masked_softmax,
)
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors


class PairsModel(LabelModel):
    """A model that gives each pair of sentences one of `labels`."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        hidden = settings.hidden
        self.shared_dropout = SharedDropout(settings.dropout)
        self.encoder = BidirectionalRNN(inputs.width, hidden)
        width = 4 * (2 * hidden + inputs.output_width)
        self.compare = nn.Sequential(nn.Linear(width, hidden), nn.ReLU())
        self.compose = BidirectionalRNN(hidden, hidden)
        self.decide = nn.Sequential(
            nn.Dropout(settings.dropout),
            nn.Linear(8 * hidden, hidden),
            nn.ReLU(),
            nn.Dropout(settings.dropout),
            nn.Linear(hidden, len(labels)),
        )
        initialise_weights(self.encoder, self.compare, self.compose, self.decide)

    def scores(self, examples: Sequence[Pair], vectors: Vectors | None) -> Tensor:
        """Return the logits (B, K) of a batch of examples."""
        a_BTD, a_mask_BT = self._encode([example.premise for example in examples], vectors)
        b_BUD, b_mask_BU = self._encode([example.hypothesis for example in examples], vectors)
        match_BTU = a_BTD @ b_BUD.mT
        a_attended_BTD = masked_softmax(match_BTU, b_mask_BU.unsqueeze(1)) @ b_BUD
        b_attended_BUD = masked_softmax(match_BTU.mT, a_mask_BT.unsqueeze(1)) @ a_BTD
        pooled_parts = []
        for side, other_side, mask in (
            (a_BTD, a_attended_BTD, a_mask_BT),
            (b_BUD, b_attended_BUD, b_mask_BU),
        ):
            comparison = self.compare(
                torch.cat([side, other_side, side - other_side, side * other_side], -1)
            )
            composition = self.compose(self.shared_dropout(comparison), mask)
            pooled_parts += [masked_mean(composition, mask), masked_max(composition, mask)]
        return self.decide(torch.cat(pooled_parts, -1))

    def _encode(
        self, sentences: Sequence[Tokens], vectors: Vectors | None
    ) -> tuple[Tensor, Tensor]:
        batch = self.inputs(sentences, vectors)
        h_BTD = self.encoder(self.shared_dropout(batch.x_BTW), batch.mask_BT)
        return batch.join_elmo(h_BTD, self.shared_dropout), batch.mask_BT


def initialise_weights(*modules: nn.Module) -> None:
    """Initialise LSTM and linear modules as ESIM does: Xavier input weights, orthogonal recurrent
    ones.

    Biases are 0, except that the two biases of each forget gate add up to 1.
    """
    for module in modules:
        for name, parameter in module.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
                if "bias_ih" in name:
                    quarter_size = len(parameter) // 4
                    parameter.data[quarter_size : 2 * quarter_size] = 1.0
            elif "weight_hh" in name:
                nn.init.orthogonal_(parameter)
            else:
                nn.init.xavier_uniform_(parameter)
