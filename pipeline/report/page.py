"""The report's page: fills `page.html`, which has its text and tables, with the results."""

import base64
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from elmo.tasks.metrics import score_order

from ..settings.params import ReportSettings
from .phrases import ARMS, SIMPLE_BASELINES, interval_text, unigram_phrase, unknown_words_remark
from .results import Results

if TYPE_CHECKING:
    from elmo.model.embedder import Embedder
    from elmo.store import FeatureStore


def render(
    params: ReportSettings,
    results: Results,
    embedder: "Embedder",
    *,
    curves_file: Path,
    pictures: Path,
) -> str:
    """Return the page as self-contained HTML.

    `embedder` is the store's model, and `curves_file` the plot of the training curves. The folder
    `pictures` has a file NAME.png for each task.
    """
    environment = load_templates(data_url, score_names, unknown_words_remark, unigram_phrase)
    environment.globals |= {"arms": ARMS | SIMPLE_BASELINES, "interval_text": interval_text}
    page = environment.get_template("page.html").render(
        title=params.title,
        results=results,
        curves=curves_file,
        pictures=pictures,
        **find_neighbors(params, results.store, embedder),
    )
    return f"{page}\n"


def load_templates(*filters: Callable[..., Any]) -> Environment:
    """Return the templates in this folder; they can use the functions `filters` by name."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {function.__name__: function for function in filters}
    return environment


def data_url(file: Path) -> str:
    """Return a PNG as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"


def score_names(figures: Mapping[str, Any]) -> list[str]:
    """Return the names of a task's scores, the main one first."""
    scores = next(figures[arm] for arm in ARMS | SIMPLE_BASELINES if arm in figures)
    return sorted((name for name in scores if not name.endswith("_sd")), key=score_order)


def find_neighbors(
    params: ReportSettings, store: "FeatureStore", embedder: "Embedder"
) -> dict[str, Any]:
    """Return, for each query, the tokens of the store used most similarly to its marked token.

    The queries are `neighbors_of` in `params`. Each text is returned in three parts, the second of
    which is the marked token. Sentences that begin with the query are left out.
    """
    from elmo.store.neighbors import (
        most_distinct_layer,
        neighbors,
        parse_query,
        random_cosine,
        split_around,
    )

    if not params.neighbors_of:
        return {"neighbors": []}
    layer = most_distinct_layer(store)
    queries = []
    for text in params.neighbors_of:
        tokens, position = parse_query(text, tokenize=embedder.tokenize)
        hits = neighbors(store, embedder, tokens, position, k=params.neighbors + 1, layer=layer)
        rows = [
            {
                "cosine": hit.cosine,
                "document": hit.document_id,
                "sentence": hit.sentence_id,
                "parts": split_around(hit.tokens, hit.position),
            }
            for hit in hits
            if hit.tokens[: len(tokens)] != tokens
        ]
        queries.append((re.split(r"\[(\S+)\]", text), rows[: params.neighbors]))
    return {"neighbors": queries, "layer": layer, "random_cosine": random_cosine(store, layer)}
