"""Sentence classification: the biattentive classification network (BCN) of McCann et al. 2017.

[x; ELMo] → a ReLU layer → biLSTM X → attention of X to itself, C → an integrator biLSTM over [X; X
− C; X ∘ C] → [h; ELMo] → max, min, mean and self-attentive pooling → three maxout layers. Both
sides of the attention are the same sentence, so only one is computed.

Shapes: B texts, T tokens, W width of x, D width of other vectors, K labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmo.tasks.examples import Classified
from elmo.tasks.inputs import TaskInputs
from elmo.tasks.labels import LabelModel
from elmo.tasks.modules import BidirectionalRNN, masked_max, masked_mean, masked_softmax
from elmo.tasks.settings import TaskSettings
from elmo.tasks.vectors import Vectors

POOL_SIZE = 4  # a maxout unit takes the largest of this many values


class Maxout(nn.Module):
    """A maxout layer: each output is the largest of `POOL_SIZE` linear functions of the input."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs * POOL_SIZE)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Map inputs (B, D) to outputs (B, outputs)."""
        return self.linear(x_BD).unflatten(-1, (-1, POOL_SIZE)).amax(-1)


class ClassificationModel(LabelModel):
    """A model that gives each text one of `labels`."""

    def __init__(self, inputs: TaskInputs, labels: Sequence[str], settings: TaskSettings) -> None:
        super().__init__(inputs, labels)
        hidden, dropout = settings.hidden, settings.dropout
        self.read = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(inputs.width, hidden), nn.ReLU(), nn.Dropout(dropout)
        )
        self.encoder = BidirectionalRNN(hidden, hidden)
        self.integrator = BidirectionalRNN(6 * hidden, hidden)
        width = 2 * hidden + inputs.output_width
        self.attend = nn.Linear(width, 1)
        self.decide = nn.Sequential(
            nn.Dropout(0.1),
            Maxout(4 * width, 4 * hidden),
            nn.Dropout(0.2),
            Maxout(4 * hidden, 2 * hidden),
            nn.Dropout(0.3),
            Maxout(2 * hidden, len(labels)),
        )

    def scores(self, examples: Sequence[Classified], vectors: Vectors | None) -> Tensor:
        """Return the logits (B, K) of a batch of examples."""
        batch = self.inputs([example.tokens for example in examples], vectors)
        mask_BT = batch.mask_BT
        x_BTD = self.encoder(self.read(batch.x_BTW), mask_BT)
        attention_BTT = masked_softmax(x_BTD @ x_BTD.mT, mask_BT.unsqueeze(1))
        context_BTD = attention_BTT @ x_BTD
        joined_BTD = torch.cat([x_BTD, x_BTD - context_BTD, x_BTD * context_BTD], -1)
        h_BTD = batch.join_elmo(self.integrator(joined_BTD, mask_BT))
        weight_BT = masked_softmax(self.attend(h_BTD).squeeze(-1), mask_BT)
        pooled = [
            masked_max(h_BTD, mask_BT),
            -masked_max(-h_BTD, mask_BT),
            masked_mean(h_BTD, mask_BT),
            (weight_BT.unsqueeze(1) @ h_BTD).squeeze(1),
        ]
        return self.decide(torch.cat(pooled, -1))
