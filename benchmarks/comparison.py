"""Compare word counts, static vectors, ELMo and a sentence-transformer on one task and one search.

    python -m benchmarks.comparison --train EWT.conllu --test EWT.conllu --squad dev.json.gz
        [--fasttext VECTORS] [--peer PYTHON]

The task is to tag each word by logistic regression. `features` are ordinary features: the word, two
neighbours on either side, pairs of neighbours, prefixes, suffixes and the word's shape. `fasttext`
and `static` (the model's layer 0) are the vectors of the word and the same neighbours,
concatenated. `elmo` and `minilm` (the sentence-transformer) are vectors of the word in its
sentence. `numbers` is the number of values per token; for features, the number of features.

The search is to find, among many paragraphs, the one that a question was asked about. It ranks them
by their cosine with the question: of TF-IDF vectors, of mean word vectors with or without context,
or of the sentence-transformer's vector of the text. `weighted` is the mean of layer 0 weighted by
inverse document frequency; `counts_weighted` adds 0.3 times its cosine to that of TF-IDF.

PYTHON is the interpreter of an environment with all-MiniLM-L6-v2 (see `minilm`). VECTORS is a
word2vec text file; a word that it does not have gets a vector of zeros. The published figures use
fastText trained on the model's training text with gensim: FastText(sentences, vector_size=100,
min_count=3, sg=1, epochs=2, workers=1, seed=1). Prints JSON.
"""

import argparse
import gzip
import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import MaxAbsScaler, normalize

from benchmarks.machine import show
from elmo.model.embedder import Embedder
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Tagged
from elmo.tasks.features import tagging_features


def main() -> None:
    """Measure the tagging and the search, and print the results."""
    options = _options()
    embedder = Embedder.load(options.model, device="cpu")
    fasttext = WordVectors(options.fasttext) if options.fasttext else None
    tagged = [_read_tagged(path)[: options.sentences] for path in (options.train, options.test)]
    questions, texts = _read_squad(options.squad, options.paragraphs)
    sentences = [example.tokens for split in tagged for example in split]
    python = options.peer
    minilm = SentenceTransformer(python, [*questions, *texts], sentences) if python else None
    show(
        {
            "model": options.model,
            "tags": score_tagging(tagged, embedder, fasttext, minilm),
            "search": score_search(questions, texts, embedder, fasttext, minilm),
        }
    )


class WordVectors:
    """Vectors of words, read from word2vec text."""

    def __init__(self, path: Path) -> None:
        with path.open(encoding="utf-8") as file:
            self.dim = int(next(file).split()[1])
            self._rows = dict(line.split(" ", 1) for line in file)

    def embed(self, words: Iterable[str]) -> Any:
        """Return the vectors (words, dim); the vector of a missing word is zeros."""
        rows = [self._rows.get(word) for word in words]
        return np.stack(
            [np.fromstring(row, sep=" ") if row else np.zeros(self.dim) for row in rows]
        )


class SentenceTransformer:
    """Vectors of texts and of tokens, computed by `minilm.py` under another interpreter."""

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


def score_tagging(
    splits: Sequence[Sequence[Tagged]],
    embedder: Embedder,
    fasttext: WordVectors | None,
    minilm: SentenceTransformer | None,
) -> dict[str, Any]:
    """Return the share of correct tags by kind of input: train on one split, score on the other."""
    gold = [[tag for example in split for tag in example.tags or ()] for split in splits]
    embeddings = [embedder.embed([example.tokens for example in split]) for split in splits]
    vectorizer = CountVectorizer(analyzer=list, binary=True).fit(_features(splits[0]))
    inputs: dict[str, list[Any]] = {
        "features": [vectorizer.transform(_features(split)) for split in splits],
        "static": [_in_window(layers[0] for layers in split) for split in embeddings],
        "elmo": [
            np.concatenate([np.concatenate(layers, 1) for layers in split]) for split in embeddings
        ],
    }
    if fasttext is not None:
        inputs["fasttext"] = [
            _in_window(fasttext.embed(example.tokens) for example in split) for split in splits
        ]
    if minilm is not None:
        inputs["minilm"] = [minilm.tokens[: len(gold[0])], minilm.tokens[len(gold[0]) :]]
    return {name: _accuracy(*train_and_test, *gold) for name, train_and_test in inputs.items()} | {
        "numbers": {name: train_and_test[0].shape[1] for name, train_and_test in inputs.items()},
        "sentences": len(splits[0]),
        "test_tokens": len(gold[1]),
    }


def score_search(
    questions: list[str],
    texts: list[str],
    embedder: Embedder,
    fasttext: WordVectors | None,
    minilm: SentenceTransformer | None,
) -> dict[str, float]:
    """Return the share of questions whose own paragraph is nearest, by kind of vector."""
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
    own_paragraphs = np.arange(len(texts))
    return {
        name: float((cosine.argmax(1) == own_paragraphs).mean()) for name, cosine in cosines.items()
    } | {"paragraphs": len(texts)}


def _tokenize(embedder: Embedder, text: str) -> list[str]:
    return [token for tokens in embedder.tokenize(text) for token in tokens]


def _read_squad(squad: Path, paragraphs: int) -> tuple[list[str], list[str]]:
    """Return the first questions and the texts of `paragraphs` paragraphs, evenly spread."""
    opener = gzip.open if squad.suffix == ".gz" else open
    with opener(squad, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    passages = [item for article in articles for item in article["paragraphs"] if item["qas"]]
    passages = passages[:: max(1, len(passages) // paragraphs)][:paragraphs]
    return [item["qas"][0]["question"] for item in passages], [item["context"] for item in passages]


def _read_tagged(path: Path) -> list[Tagged]:
    examples: list[Any] = read_examples("tagging", path).examples
    return examples


def _features(sentences: Sequence[Tagged]) -> list[list[str]]:
    """Return the features of each token."""
    return [row for sentence in sentences for row in tagging_features(sentence.tokens)]


def _in_window(vectors: Iterable[Any]) -> Any:
    """Concatenate each token's vector with those of two neighbours on either side (zeros beyond
    the sentence); return (tokens of all sentences, 5 × dim)."""
    padded = [(len(x_TD), np.pad(x_TD, ((2, 2), (0, 0)))) for x_TD in vectors]
    return np.concatenate(
        [np.concatenate([x[k : k + T] for k in range(5)], axis=1) for T, x in padded]
    )


def _accuracy(train: Any, test: Any, train_tags: list[str], test_tags: list[str]) -> float:
    """Return the share of correct tags on `test`; the last fifth of `train` chooses C."""
    scaler = MaxAbsScaler().fit(train)
    x, n = scaler.transform(train), len(train_tags) * 4 // 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some fits stop just before they converge
        models = [LogisticRegression(C=c, max_iter=100) for c in (0.1, 1.0, 10.0)]
        scores = [model.fit(x[:n], train_tags[:n]).score(x[n:], train_tags[n:]) for model in models]
        best = models[scores.index(max(scores))].fit(x, train_tags)
    return float(best.score(scaler.transform(test), test_tags))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--train", type=Path, required=True, help="tagged sentences to train on")
    parser.add_argument("--test", type=Path, required=True, help="tagged sentences to score")
    parser.add_argument("--squad", type=Path, required=True, help="questions in SQuAD's format")
    parser.add_argument("--fasttext", type=Path, help="word vectors, word2vec text format")
    parser.add_argument("--peer", help="interpreter of an environment with all-MiniLM-L6-v2")
    parser.add_argument("--model", default="english")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--paragraphs", type=int, default=500)
    return parser.parse_args()


if __name__ == "__main__":
    main()
