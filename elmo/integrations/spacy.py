"""A spaCy component: the vectors of a Doc's tokens.

import elmo.integrations.spacy
nlp = spacy.blank("en")
nlp.add_pipe("elmo", config={"model": "models/finetune"})
doc = nlp("He has a gift.")
doc._.elmo       # (layers, tokens, dim)
doc[0].vector    # the mean of the layers; doc.vector and similarity use it too

Shapes: L layers, T tokens of a text, D width of a layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.model.embedder import Embedder

try:
    from spacy.language import Language
    from spacy.tokens import Doc
except ModuleNotFoundError:
    raise ElmoError("the spaCy component needs: pip install 'elmo-pipeline[spacy]'") from None


class ElmoComponent:
    """A spaCy component that sets `doc._.elmo`, an array (layers, tokens, dim), and the vectors of
    tokens, spans and the Doc, means of the layers.

    spaCy's own tokens are embedded, each sentence on its own if an earlier component sets
    sentences. `layers` are the numbers of the layers to use (None: all).
    """

    def __init__(self, model: str, *, layers: Sequence[int] | None, device: str) -> None:
        self.embedder = Embedder.from_pretrained(model, device=device)
        self.layers = layers

    def __call__(self, doc: Doc) -> Doc:
        """Embed one Doc and return it."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Embed many Docs, `batch_size` sentences at a time, and yield them."""
        waiting: list[Doc] = []

        def sentences() -> Iterator[list[list[str]]]:
            for doc in stream:
                waiting.append(doc)
                parts = doc.sents if doc.has_annotation("SENT_START") else [doc[:]]
                yield [[token.text for token in part] for part in parts if len(part)]

        embedded = self.embedder.embed_stream(sentences(), batch_size, layers=self.layers)
        for layers_LTD in embedded:
            doc = waiting.pop(0)
            doc._.elmo = layers_LTD
            vectors_TD = layers_LTD.mean(0)
            doc.tensor = vectors_TD
            doc.user_hooks |= {"vector": _mean, "has_vector": _whether, "vector_norm": _norm}
            doc.user_span_hooks |= {"vector": _mean, "has_vector": _whether, "vector_norm": _norm}
            doc.user_token_hooks |= {
                "vector": lambda token: token.doc.tensor[token.i],
                "has_vector": _whether,
                "vector_norm": lambda token: float(np.linalg.norm(token.vector)),
            }
            yield doc


def _mean(part: Any) -> Floats:
    """Return the mean vector of a Doc's or a span's tokens."""
    start, end = getattr(part, "start", 0), getattr(part, "end", len(part))
    vectors_TD = (part.doc if hasattr(part, "doc") else part).tensor[start:end]
    return np.asarray(vectors_TD.mean(0) if len(vectors_TD) else np.zeros(vectors_TD.shape[1:]))


def _norm(part: Any) -> float:
    return float(np.linalg.norm(_mean(part)))


def _whether(_: Any) -> bool:
    return True


@Language.factory("elmo", assigns=["doc._.elmo", "doc.tensor", "token.vector"])
def create_elmo_component(
    nlp: Language, name: str, model: str, layers: list[int] | None = None, device: str = "cpu"
) -> ElmoComponent:
    """Create the component `elmo`; spaCy calls this for `nlp.add_pipe("elmo", config={"model":
    FOLDER})`. A token's vector is the mean of `layers` (default: all). `nlp` and `name` are
    spaCy's, and not used."""
    if not Doc.has_extension("elmo"):
        Doc.set_extension("elmo", default=None)
    return ElmoComponent(model, layers=layers, device=device)
