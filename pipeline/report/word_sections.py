"""The report's section on single words: their neighbours in the store."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ..settings.params import ReportSettings
from .page import Block, Heading, Paragraph, Table

if TYPE_CHECKING:
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore


def neighbors(params: ReportSettings, store: "FeatureStore", embedder: "Embedder") -> list[Block]:
    """Return the tokens of the store that are used most like the marked one of each query.

    The queries are `neighbors_of` in `params`; `embedder` is the store's model. The sentence that a
    query is the beginning of says nothing, and is left out.
    """
    if not params.neighbors_of:
        return []
    from elmo.store.neighbors import clearest_layer, parse_query, random_cosine
    from elmo.store.neighbors import neighbors as nearest

    layer = clearest_layer(store)
    subject = "Vectors" if layer is None else f"Those of layer {layer}, which differ most,"
    intro = (
        f"Which tokens of the store are used most like the marked one? {subject} are compared by "
        f"cosine; two random tokens have {random_cosine(store, layer):.3f}."
    )
    blocks: list[Block] = [Paragraph(intro, small=False)]
    for text in params.neighbors_of:
        tokens, position = parse_query(text, tokenize=embedder.tokenize)
        hits = nearest(store, embedder, tokens, position, k=params.neighbors + 1, layer=layer)
        answers = [hit for hit in hits if hit.tokens[: len(tokens)] != tokens]
        rows = [
            (
                f"{hit.cosine:.3f}",
                f"{hit.document_id}",
                f"{hit.sentence_id}",
                _mark_token(hit.tokens, hit.position),
            )
            for hit in answers[: params.neighbors]
        ]
        query = Markup(re.sub(r"\[(\S+)\]", r"<b>\1</b>", str(escape(text))))
        blocks.append(Heading(query))
        blocks.append(
            Table(rows, head=("cosine", "document", "sentence", "used there"), words=(3,))
        )
    return blocks


def _mark_token(tokens: Sequence[str], position: int) -> Markup:
    """Return the tokens around a position as HTML, with the one there in bold."""
    from elmo.store.neighbors import surroundings

    return Markup("{}<b>{}</b>{}").format(*surroundings(tokens, position))
