"""Compare word counts, static vectors, ELMo and a sentence-transformer in a search for paragraphs.

    python -m benchmarks.search SQUAD.json [--fasttext VECTORS] [--peer PYTHON]

The task is to find, among many paragraphs, the one that a question was asked about. Paragraphs are
ranked by the cosine of their vector and that of the question: TF-IDF, the mean of word vectors with
or without context, or the sentence-transformer's vector of a text. `static` is the model's layer 0;
`weighted` is layer 0 with means weighted by inverse document frequency; `counts_weighted` is the
cosine of TF-IDF plus 0.3 times that of `weighted`.

PYTHON is the interpreter of an environment with all-MiniLM-L6-v2 (see `minilm`). VECTORS is a
word2vec text file; words that are missing there get zeros. The published figures use
fastText trained on the model's training text with gensim: FastText(sentences, vector_size=100,
min_count=3, sg=1, epochs=2, workers=1, seed=1). Prints JSON.
"""

import argparse
import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from benchmarks.machine import print_figures
from elmo.model.embedder import Embedder


def main() -> None:
    """Score the search with each kind of vector and print the figures."""
    options = _parse_options()
    embedder = Embedder.load(options.model, device="cpu")
    fasttext = WordVectors(options.fasttext) if options.fasttext else None
    questions, texts = _read_squad(options.squad, options.paragraphs)
    minilm = None
    if options.peer:  # [["token"]]: it needs tokens to embed, although none are used here
        minilm = SentenceTransformer(options.peer, [*questions, *texts], [["token"]])
    scores = score_search(questions, texts, embedder, fasttext, minilm)
    print_figures({"model": options.model, "search": scores})


class WordVectors:
    """Word vectors from a word2vec text file."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            self.dim = int(next(file).split()[1])
            self._line_by_word = dict(line.split(" ", 1) for line in file)

    def embed(self, words: Iterable[str]) -> Any:
        """Return the vectors (words, dim), zeros for a missing word."""
        lines = [self._line_by_word.get(word) for word in words]
        return np.stack(
            [np.fromstring(line, sep=" ") if line else np.zeros(self.dim) for line in lines]
        )


class SentenceTransformer:
    """Vectors of texts and of tokens, computed by `minilm.py` with another interpreter."""

    def __init__(
        self,
        python: str,
        texts: Sequence[str],
        sentences: Sequence[Sequence[str]],
        model: Path | None = None,
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            inputs, vectors = Path(folder) / "texts.json", Path(folder) / "vectors.npz"
            inputs.write_text(json.dumps({"texts": texts, "sentences": sentences}))
            script = str(Path(__file__).with_name("minilm.py"))
            environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
            command = [python, script, str(inputs), str(vectors), *([str(model)] if model else [])]
            subprocess.run(command, check=True, env=environment)
            with np.load(vectors) as arrays:
                self.tokens = arrays["tokens"]
                self._vectors = dict(zip(texts, arrays["texts"], strict=True))

    def embed(self, texts: Iterable[str]) -> Any:
        """Return the vectors of texts (texts, dim)."""
        return np.stack([self._vectors[text] for text in texts])


def score_search(
    questions: list[str],
    texts: list[str],
    embedder: Embedder,
    fasttext: WordVectors | None,
    minilm: SentenceTransformer | None,
) -> dict[str, float]:
    """Return, by kind of vector, the share of questions whose own paragraph is nearest."""
    tfidf = TfidfVectorizer(sublinear_tf=True).fit(texts)
    idf = dict(zip(tfidf.get_feature_names_out(), tfidf.idf_, strict=True))

    def weighted_mean(text: str) -> Any:
        words = _tokenize(embedder, text)
        weights = [idf.get(word.lower(), 1.0) for word in words]
        return np.average(embedder.embed([words], layers=[0])[0][0], 0, weights=weights)

    encoders: dict[str, Callable[[list[str]], Any]] = {
        "counts": lambda batch: tfidf.transform(batch).toarray(),
        "static": lambda batch: embedder.encode(batch, layers=[0]),
        "weighted": lambda batch: np.stack([weighted_mean(text) for text in batch]),
        "elmo": lambda batch: embedder.encode(batch),
    }
    if fasttext is not None:
        encoders["fasttext"] = lambda batch: np.stack(
            [fasttext.embed(_tokenize(embedder, text)).mean(0) for text in batch]
        )
    if minilm is not None:
        encoders["minilm"] = minilm.embed
    cosines = {
        name: normalize(encode(questions)) @ normalize(encode(texts)).T
        for name, encode in encoders.items()
    }
    cosines["counts_weighted"] = cosines["counts"] + 0.3 * cosines["weighted"]
    targets = np.arange(len(texts))
    return {
        name: float((cosine.argmax(1) == targets).mean()) for name, cosine in cosines.items()
    } | {"paragraphs": len(texts)}


def _tokenize(embedder: Embedder, text: str) -> list[str]:
    return [token for tokens in embedder.tokenize(text) for token in tokens]


def _read_squad(squad: Path, paragraphs: int) -> tuple[list[str], list[str]]:
    """Choose `paragraphs` evenly spread paragraphs; return their first questions and texts."""
    opener = gzip.open if squad.suffix == ".gz" else open
    with opener(squad, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    passages = [item for article in articles for item in article["paragraphs"] if item["qas"]]
    passages = passages[:: max(1, len(passages) // paragraphs)][:paragraphs]
    return [item["qas"][0]["question"] for item in passages], [item["context"] for item in passages]


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("squad", type=Path, help="questions in SQuAD's format")
    parser.add_argument("--fasttext", type=Path, help="word vectors, word2vec text format")
    parser.add_argument("--peer", help="interpreter of an environment with all-MiniLM-L6-v2")
    parser.add_argument("--model", default="english")
    parser.add_argument("--paragraphs", type=int, default=500)
    return parser.parse_args()


if __name__ == "__main__":
    main()
