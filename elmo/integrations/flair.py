"""A flair embedding: the vectors of a Sentence's tokens.

from elmo.integrations.flair import ElmoEmbeddings
sentence = Sentence("He has a gift .")
ElmoEmbeddings("models/finetune").embed(sentence)
sentence[0].embedding    # the mean of the layers

Shapes: L layers, T tokens of a sentence, D width of a layer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from elmo.errors import ElmoError
from elmo.model.embedder import Embedder

try:
    import flair
    from flair.embeddings.base import register_embeddings
    from flair.embeddings.token import TokenEmbeddings
except ModuleNotFoundError:
    raise ElmoError("ElmoEmbeddings needs: pip install 'elmo-pipeline[flair]'") from None


@register_embeddings
class ElmoEmbeddings(TokenEmbeddings):
    """ELMo vectors as token embeddings of flair: for each token the mean of `layers` (default:
    all).

    `model` is as for `Embedder.from_pretrained`. flair's own tokens are embedded, on flair's
    device. A saved flair model contains the model's name, not its weights.
    """

    def __init__(self, model: str | Path, *, layers: Sequence[int] | None = None) -> None:
        super().__init__()
        self.model, self.layers = str(model), layers
        self.embedder = Embedder.from_pretrained(model, device=str(flair.device))
        self.name = f"elmo-{self.embedder.model.digest[:12]}"
        self.static_embeddings = True  # the same sentence always has the same vectors
        self.eval()

    @property
    def embedding_length(self) -> int:
        """Return the width of a token's vector."""
        return self.embedder.dim

    def _add_embeddings_internal(self, sentences: Any) -> None:
        tokens = [[token.text for token in sentence] for sentence in sentences]
        vectors = self.embedder.embed(tokens, layers=self.layers)
        for sentence, layers_LTD in zip(sentences, vectors, strict=True):
            vectors_TD = torch.from_numpy(layers_LTD.mean(0)).to(flair.device)
            for token, vector_D in zip(sentence, vectors_TD, strict=True):
                token.set_embedding(self.name, vector_D)

    def to_params(self) -> dict[str, Any]:
        """Return the parameters that flair saves."""
        return {"model": self.model, "layers": self.layers}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> "ElmoEmbeddings":
        """Create the embeddings from parameters that flair saved."""
        return cls(**params)

    def extra_repr(self) -> str:
        """Return the model's name, for flair's printed list of modules."""
        return f"model={self.model}"
