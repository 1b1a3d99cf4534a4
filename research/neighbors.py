"""Nearest neighbours in context, and of static vectors (Table 4 of the paper)."""

from pathlib import Path
from typing import Any

import numpy as np

from elmo.errors import ElmoError
from elmo.io.text_files import numbered_lines
from elmo.model.embedder import Embedder
from elmo.store import FeatureStore
from elmo.store.neighbors import neighbors, parse_query
from elmo.tasks.inputs import read_word_vectors
from pipeline.stages.task_training import source_digest
from research.finding import Finding, Row, command_line


def find_neighbors(
    model: Path,
    store: Path,
    queries: Path,
    *,
    vectors: Path,
    count: int,
    layer: int | None,
    same_word: bool,
    device: str,
) -> Finding:
    """Find the nearest tokens in the store for each line of `queries`, a sentence with a [token].

    Also finds the words whose static vectors in the file `vectors` (word2vec or GloVe text) are
    nearest. The score is the share of neighbours in context that are the same word; with
    `same_word`, where all are, it is the cosine of the nearest neighbour.
    """
    embedder, features = Embedder.load(model, device=device), FeatureStore(store, model=model)
    lines = [line for _, line in numbered_lines(queries) if line.strip()]
    if not lines:
        raise ElmoError(f"{queries}: is empty; write sentences such as: He has a [gift] for music")
    parsed_lines = [parse_query(line, tokenize=embedder.tokenize) for line in lines]
    words, word_vectors = _read_vectors(vectors, {tokens[k] for tokens, k in parsed_lines})
    rows, neighbor_lists = [], {}
    for line, (tokens, position) in zip(lines, parsed_lines, strict=True):
        nearest = neighbors(
            features, embedder, tokens, position, k=count, layer=layer, same_word=same_word
        )
        word = tokens[position]
        is_same_word = [item.tokens[item.position].lower() == word.lower() for item in nearest]
        same_word_share = float(np.mean(is_same_word)) if is_same_word else 0.0
        score = nearest[0].cosine if same_word and nearest else same_word_share
        rows.append(Row(line, score))
        neighbor_lists[line] = {
            "in context": [item.context() for item in nearest],
            "static": _nearest_words(words, word_vectors, word, count),
        }
    sources = {"queries": queries, "vectors": vectors}
    settings: dict[str, Any] = {"count": count, "layer": layer, "same_word": same_word}
    return Finding(
        format=1,
        kind="neighbors",
        task="neighbors",
        metric="cosine of the nearest" if same_word else "same word",
        command=command_line(),
        model=embedder.model.digest,
        data={name: source_digest(name, path) for name, path in sources.items()}
        | {"store": features.digest},
        examples={"sentences": len(features), "queries": len(lines)},
        seeds=[],
        settings=settings,
        rows=rows,
        neighbors=neighbor_lists,
    )


def _read_vectors(vectors: Path, words: set[str]) -> tuple[list[str], Any]:
    header = next((line for _, line in numbered_lines(vectors)), "").split()
    dim = int(header[1]) if len(header) == 2 and header[1].isdecimal() else len(header) - 1
    return read_word_vectors(vectors, words, dim=max(1, dim))


def _nearest_words(words: list[str], vectors: Any, word: str, count: int) -> list[str]:
    """Return the words nearest by cosine; none if `word` has no vector."""
    if word not in words:
        return []
    unit_vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    order = np.argsort(-(unit_vectors @ unit_vectors[words.index(word)]), kind="stable")
    return [words[k] for k in order if words[k] != word][:count]
