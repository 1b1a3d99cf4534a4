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
    """Return the vector of each token; `index` has its row in `x_NP`, the vectors of distinct
    tokens. Gradients of repeated tokens are summed in float32, also for bfloat16 vectors."""
    return nn.functional.embedding(index, x_NP.float()).to(x_NP.dtype)


class BiLM(nn.Module):
    """The network of ELMo, a bidirectional language model, without the softmax that predicts words.
    `character_count` is the size of its character vocabulary.

    `encode` gives each distinct token a context-free vector, and `lstm` reads the vectors of a text
    in both directions.
    """

    def __init__(self, shape: ModelShape, *, character_count: int) -> None:
        super().__init__()
        self.shape = shape
        self.encoder: CharacterEncoder | WordEncoder
        if shape.input_words is None:
            self.encoder = CharacterEncoder(
                character_count=character_count,
                char_dim=shape.char_dim,
                filters=shape.filters,
                activation=shape.activation,
                highways=shape.highways,
                projection=shape.projection,
            )
        else:
            self.encoder = WordEncoder(word_count=shape.input_words, projection=shape.projection)
        self.lstm = LSTMStack(
            layers=shape.layers,
            inputs=shape.projection,
            cells=shape.cells,
            projection=shape.projection,
            cell_clip=shape.cell_clip,
            projection_clip=shape.projection_clip,
            skip=shape.skip,
        )

    def reset_parameters(self, seed: int) -> None:
        """Initialise all weights from a seed, with the distributions of bilm-tf."""
        generator = torch.Generator().manual_seed(seed)
        self.encoder.reset_parameters(generator)
        self.lstm.reset_parameters(generator)

    def encode(self, inputs_N: Tensor, *, precision: torch.dtype | None = None) -> Tensor:
        """Return the context-free vectors (tokens, projection) of tokens. They are given as
        character ids (tokens, characters), or as word ids if the model reads words. Products are
        computed in `precision` (default: that of the weights)."""
        vectors: Tensor = self.encoder(inputs_N, precision or self.lstm.weight[0].dtype)
        return vectors
