"""The bidirectional language model (section 3.1 of the paper): a shared encoder, two LSTM stacks.

Shapes: N tokens, K characters, P projection.
"""

import torch
from torch import Tensor, nn

from elmo.nn.encoder import CharacterEncoder, WordEncoder
from elmo.nn.lstm import LSTMStack
from elmo.settings import Config

__all__ = ["BiLM", "Config", "look_up"]


def look_up(index: Tensor, x_NP: Tensor) -> Tensor:
    """Return the vectors of tokens (…, P) from a table of distinct tokens.

    The gradients of a token's occurrences are summed in float32.
    """
    return nn.functional.embedding(index, x_NP.float()).to(x_NP.dtype)


class BiLM(nn.Module):
    """A bidirectional language model without its softmax.

    `encode` gives each distinct token its context-free vector, and `lstm` reads these vectors in
    both directions.
    """

    def __init__(self, config: Config, *, characters: int) -> None:
        super().__init__()
        self.config = config
        self.encoder: CharacterEncoder | WordEncoder
        if config.input_words is None:
            self.encoder = CharacterEncoder(
                characters=characters,
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                highways=config.highways,
                projection=config.projection,
            )
        else:
            self.encoder = WordEncoder(words=config.input_words, projection=config.projection)
        self.lstm = LSTMStack(
            layers=config.layers,
            inputs=config.projection,
            cells=config.cells,
            projection=config.projection,
            cell_clip=config.cell_clip,
            projection_clip=config.projection_clip,
            skip=config.skip,
        )

    def reset_parameters(self, seed: int) -> None:
        """Initialise all weights as in 2018, from a seed."""
        generator = torch.Generator().manual_seed(seed)
        self.encoder.reset_parameters(generator)
        self.lstm.reset_parameters(generator)

    def encode(self, inputs_N: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return the context-free vectors (N, P) of tokens: character ids (N, K), or word ids (N,).

        Matrix products run in `precision`, by default that of the weights.
        """
        vectors: Tensor = self.encoder(inputs_N, precision or self.lstm.weight[0].dtype)
        return vectors
