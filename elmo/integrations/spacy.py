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
    tokens, spans and the Doc, which are means of the layers.

    It embeds spaCy's tokens, each sentence separately if an earlier component sets sentences.
    White-space tokens are not embedded and have zero vectors. `layers` are the numbers of the
    layers to use (None: all).
    """

    def __init__(self, model: str, *, layers: Sequence[int] | None, device: str) -> None:
        self.embedder = Embedder.from_pretrained(model, device=device)
        self.layers = layers

    def __call__(self, doc: Doc) -> Doc:
        """Embed one Doc and return it."""
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Embed many Docs, `batch_size` sentences at a time, and yield them."""
        pending_docs: list[Doc] = []

        def sentences() -> Iterator[list[list[str]]]:
            for doc in stream:
                pending_docs.append(doc)
                spans = doc.sents if doc.has_annotation("SENT_START") else [doc[:]]
                words = [[token.text for token in span if not token.is_space] for span in spans]
                yield [sentence for sentence in words if sentence]

        layer_arrays = self.embedder.embed_stream(sentences(), batch_size, layers=self.layers)
        for layers_LTD in layer_arrays:
            doc = pending_docs.pop(0)
            is_word_T = [not token.is_space for token in doc]
            doc._.elmo = np.zeros((len(layers_LTD), len(doc), layers_LTD.shape[2]), np.float32)
            doc._.elmo[:, is_word_T] = layers_LTD
            doc.tensor = doc._.elmo.mean(0)
            # Spans get no vector_norm hook, because spaCy would call the vector hook instead.
            shared_hooks: dict[str, Any] = {"has_vector": _always_true, "similarity": _similarity}
            doc.user_hooks |= {"vector": _mean_vector, "vector_norm": _norm, **shared_hooks}
            doc.user_span_hooks |= {"vector": _mean_vector, **shared_hooks}
            doc.user_token_hooks |= {"vector": _token_vector, "vector_norm": _norm, **shared_hooks}
            yield doc


def _mean_vector(doc_part: Any) -> Floats:
    """Return the mean vector of a Doc's or a span's words."""
    tensor_TD = (doc_part.doc if hasattr(doc_part, "doc") else doc_part).tensor
    rows = [token.i for token in doc_part if not token.is_space]
    return np.asarray(tensor_TD[rows].mean(0) if rows else np.zeros_like(tensor_TD[:1].sum(0)))


def _token_vector(token: Any) -> Floats:
    return np.asarray(token.doc.tensor[token.i])


def _norm(doc_part: Any) -> float:
    return float(np.linalg.norm(doc_part.vector))


def _similarity(left: Any, right: Any) -> float:
    """Return the cosine of the vectors of two Docs, spans or tokens; 0 if one is a zero vector."""
    norms = _norm(left) * _norm(right)
    return float(left.vector @ right.vector) / norms if norms else 0.0


def _always_true(_: Any) -> bool:
    return True


@Language.factory("elmo", assigns=["doc._.elmo", "doc.tensor", "token.vector"])
def create_elmo_component(
    nlp: Language, name: str, model: str, layers: list[int] | None = None, device: str = "cpu"
) -> ElmoComponent:
    """Create the component `elmo`; spaCy calls this for `nlp.add_pipe("elmo", config={"model":
    FOLDER})`. A token's vector is the mean of `layers` (default: all). spaCy requires `nlp` and
    `name`, which are not used."""
    if not Doc.has_extension("elmo"):
        Doc.set_extension("elmo", default=None)
    return ElmoComponent(model, layers=layers, device=device)
