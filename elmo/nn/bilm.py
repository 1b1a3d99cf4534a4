"""The bidirectional language model (section 3.1 of the paper): a shared encoder, two LSTM stacks.

Shapes: N tokens, K characters, P projection.
"""

import torch
from torch import Tensor, nn

from elmo.nn.encoder import CharacterEncoder, WordEncoder
from elmo.nn.lstm import LSTMStack
from elmo.settings import ModelShape

__all__ = ["BiLM", "token_vectors"]


def token_vectors(index: Tensor, x_NP: Tensor) -> Tensor:
    """Return the vector of each token, given its row `index` in `x_NP`, the vectors of distinct
    tokens. The gradients of a token's occurrences are summed in float32, also for bfloat16
    vectors."""
    return nn.functional.embedding(index, x_NP.float()).to(x_NP.dtype)


class BiLM(nn.Module):
    """The network of ELMo, a bidirectional language model, without the softmax that predicts words.
    `character_count` is the size of its character vocabulary.

    `encode` gives each distinct token a context-free vector, and `lstm` reads the vectors of a text
    in both directions.
    """

    def __init__(self, config: ModelShape, *, character_count: int) -> None:
        super().__init__()
        self.config = config
        self.encoder: CharacterEncoder | WordEncoder
        if config.input_words is None:
            self.encoder = CharacterEncoder(
                character_count=character_count,
                char_dim=config.char_dim,
                filters=config.filters,
                activation=config.activation,
                highways=config.highways,
                projection=config.projection,
            )
        else:
            self.encoder = WordEncoder(word_count=config.input_words, projection=config.projection)
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
        """Initialise all weights from a seed, with the distributions of bilm-tf."""
        generator = torch.Generator().manual_seed(seed)
        self.encoder.reset_parameters(generator)
        self.lstm.reset_parameters(generator)

    def encode(self, inputs_N: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return the context-free vectors (tokens, projection) of tokens, given as character ids
        (tokens, characters) or, for a model that reads words, as word ids. Products are computed in
        `precision` (default: that of the weights)."""
        vectors: Tensor = self.encoder(inputs_N, precision or self.lstm.weight[0].dtype)
        return vectors
