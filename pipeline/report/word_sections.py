"""The report's sections on single words: their neighbours, and their uses on a plane."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from ..settings.params import ReportSettings
from .page import Block, Heading, Paragraph, RawHtml, Table
from .word_uses_picture import FEWEST, marked_html, occurrences, picture_html

if TYPE_CHECKING:
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore


def neighbors(params: ReportSettings, store: "FeatureStore", embedder: "Embedder") -> list[Block]:
    """Return the tokens of the store that are used most like the marked one of each query.

    The queries are `neighbors_of` in `params`; `embedder` is the store's model. The sentence that a
    query is the beginning of says nothing, and is left out.
    """
    from elmo.store.neighbors import clearest_layer, parse_query, random_cosine
    from elmo.store.neighbors import neighbors as nearest

    layer = clearest_layer(store)
    compared = "Vectors" if layer is None else f"Those of layer {layer}, which differ most,"
    intro = (
        f"Which tokens of the store are used most like the marked one? {compared} are compared by "
        f"cosine; two random tokens have {random_cosine(store, layer):.3f}."
    )
    blocks: list[Block] = [Paragraph(intro, small=False)]
    for text in params.neighbors_of:
        tokens, position = parse_query(text, tokenize=embedder.tokenize)
        found = nearest(store, embedder, tokens, position, k=params.neighbors + 1, layer=layer)
        others = [one for one in found if one.tokens[: len(tokens)] != tokens]
        rows = [
            (
                f"{one.cosine:.3f}",
                f"{one.document_id}",
                f"{one.sentence_id}",
                Markup(marked_html(one.tokens, one.position)),
            )
            for one in others[: params.neighbors]
        ]
        query = Markup(re.sub(r"\[(\S+)\]", r"<b>\1</b>", str(escape(text))))
        blocks.append(Heading(query))
        blocks.append(
            Table(rows, head=("cosine", "document", "sentence", "used there"), words=(3,))
        )
    return blocks


def uses(queries: Sequence[str], store: "FeatureStore", embedder: "Embedder") -> list[Block]:
    """Return the occurrences of the marked token of each query on a plane, once for each token.

    A query is a sentence with one token in brackets, which the tokenizer of `embedder` cuts.
    """
    from elmo.store.neighbors import parse_query

    words: dict[str, None] = {}
    for text in queries:
        tokens, index = parse_query(text, tokenize=embedder.tokenize)
        words[tokens[index]] = None
    blocks: list[Block] = [
        Paragraph(
            "Each point is an occurrence in the store: the mean of its layers on the two principal "
            "directions. Its colour is the nearest of at most three uses (k-means of the vectors); "
            "a list shows the most typical occurrence of each. A point tells its sentence."
        )
    ]
    for word in words:
        of_word = occurrences(store, word)
        few = Paragraph(f"Occurs {len(of_word)} times, too rarely for a picture.")
        blocks.append(Heading(word))
        blocks.append(RawHtml(Markup(picture_html(of_word))) if len(of_word) >= FEWEST else few)
    return blocks
