"""Simple baselines to compare a task's score with, each fitted on the training file alone.

`majority` predicts the most frequent label, or for a tagger the most frequent tag of each word.
`features` is a linear model of ordinary features: the shape, affixes and neighbours of a word, or
TF-IDF weights of a text's words and word pairs. `static` is a linear model on the biLM's
context-free word vectors (layer 0), averaged over a text, or one by one for a tagger.

Shapes: N examples or tokens, W words, D the width of a word's vector.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from elmo.data.arrays import Floats
from elmo.errors import ElmoError
from elmo.tasks.examples import Classified, Tagged, learnable_examples
from elmo.tasks.features import LinearModels
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import FEATURES, KINDS_WITH_FEATURES
from elmo.tasks.metrics import Tally, tally_accuracy
from elmo.tasks.tagging import tally_tags

Encode = Callable[[Sequence[str]], Floats]  # words → their vectors (W, D)
_MAX_TOKENS = 20_000  # a tagger's linear model learns from fewer, spread evenly
_STRENGTHS = (1.0, 10.0, 100.0, 0.1)  # of the linear models; dev chooses, of equals the first


def score_baselines(kind: str, data: Mapping[str, ExampleSet], encode: Encode) -> dict[str, Tally]:
    """Train the baselines that apply to a kind of task, score them on `data["test"]`; return their
    tallies by name.

    `data` holds the splits train, dev and test; `encode` gives the context-free vectors (layer 0)
    of words. No baseline applies to questions, roles and coreference.
    """
    if kind not in KINDS_WITH_FEATURES:
        return {}
    dev: list[Any] = data["dev"].examples
    test: list[Any] = data["test"].examples
    train: list[Any] = learnable_examples(data["train"].examples)
    if not train:
        return {}
    if kind == "tagging":
        return _tagging_baselines(train, dev, test, encode)
    gold = [example.label for example in test]
    label = _most_common(Counter(example.label for example in train))
    tallies = {"majority": tally_accuracy(gold, [label] * len(gold))}
    labels = sorted({example.label for example in train})
    tallies["features"] = tally_accuracy(gold, _feature_guesses(labels, train, test))
    if kind == "classification":
        average = _make_averager([*train, *dev, *test], encode)
        tallies["static"] = tally_accuracy(gold, _fit_linear(average, train, dev)(test))
    return tallies


def _feature_guesses(labels: Sequence[str], train: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    models = LinearModels(FEATURES, len(labels))
    models.fit(train, labels)
    return models.predict(test, labels)


def _tagging_baselines(
    train: Sequence[Tagged], dev: Sequence[Tagged], test: Sequence[Tagged], encode: Encode
) -> dict[str, Tally]:
    predict_tag = most_frequent_tagger((example.tokens, example.tags or ()) for example in train)
    guesses = [[predict_tag(word) for word in example.tokens] for example in test]
    labels = sorted({tag for example in train for tag in example.tags or ()})
    tallies = {"majority": tally_tags(test, guesses, labels)}
    tallies["features"] = tally_tags(test, _feature_guesses(labels, train, test), labels)
    average = _make_averager([*train, *dev, *test], encode)
    words = _label_words(train)
    predict = _fit_linear(average, words[:: len(words) // _MAX_TOKENS + 1], _label_words(dev))
    flat_guesses = iter(predict(_label_words(test)))
    guesses = [[next(flat_guesses) for _ in example.tokens] for example in test]
    return tallies | {"static": tally_tags(test, guesses, labels)}


def most_frequent_tagger(
    train: Iterable[tuple[Sequence[str], Sequence[str]]],
) -> Callable[[str], str]:
    """Return a function that gives a word the tag it has most often in `train`.

    `train` has the tokens and the tags of each sentence. A word that it lacks gets the most
    frequent tag of all words; of equally frequent tags, the alphabetically first is chosen.
    """
    tag_counts_by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for tokens, tags in train:
        for word, tag in zip(tokens, tags, strict=True):
            tag_counts_by_word[word][tag] += 1
    tag_by_word = {word: _most_common(tags) for word, tags in tag_counts_by_word.items()}
    fallback_tag = _most_common(sum(tag_counts_by_word.values(), Counter[str]()))
    return lambda word: tag_by_word.get(word, fallback_tag)


def _label_words(examples: Iterable[Tagged]) -> list[Classified]:
    """Return each token as a text of its own, labelled with its tag."""
    return [
        Classified(example.source, (word,), tag)
        for example in examples
        for word, tag in zip(example.tokens, example.tags or (), strict=True)
    ]


def _most_common(counts: Counter[str]) -> str:
    """Return the most frequent value; of equally frequent ones, the first in alphabetical order."""
    return min(counts, key=lambda value: (-counts[value], value))


def _make_averager(
    examples: Sequence[Classified | Tagged], encode: Encode
) -> Callable[[Sequence[Classified]], Floats]:
    """Return a function that gives texts the means of their words' context-free vectors, (N, D),
    zeros for a text without words; `examples` have all the words."""
    words = sorted({word for example in examples for word in example.tokens})
    row_by_word = {word: number for number, word in enumerate(words)}
    vectors_WD = encode(words)

    def average(texts: Sequence[Classified]) -> Floats:
        sums = [vectors_WD[[row_by_word[word] for word in text.tokens]].sum(0) for text in texts]
        return np.stack(
            [total / max(1, len(text.tokens)) for total, text in zip(sums, texts, strict=True)]
        )

    return average


def _fit_linear(
    to_features: Callable[[Sequence[Classified]], Any],
    train: Sequence[Classified],
    dev: Sequence[Classified],
) -> Callable[[Sequence[Classified]], list[str]]:
    """Fit logistic regression, regularised as works best on dev; return its prediction function."""
    labels = [example.label or "" for example in train]
    if len(set(labels)) == 1:
        return lambda examples: labels[:1] * len(examples)
    logistic = _sklearn("linear_model").LogisticRegression
    x = to_features(train)
    scaler = _sklearn("preprocessing").MaxAbsScaler().fit(x)
    scored_dev = [example for example in dev if example.label is not None]
    # Small products, whose bits and time are better on one thread.
    with warnings.catch_warnings(), import_module("threadpoolctl").threadpool_limits(1, "blas"):
        warnings.simplefilter("ignore")  # of what is nearly converged
        models = [
            logistic(C=strength, max_iter=200).fit(scaler.transform(x), labels)
            for strength in (_STRENGTHS if scored_dev else (1.0,))
        ]
    gold = [example.label for example in scored_dev]
    dev_scores = [
        model.score(scaler.transform(to_features(scored_dev)), gold) if scored_dev else 0.0
        for model in models
    ]
    best_model = models[int(np.argmax(dev_scores))]

    def predict(examples: Sequence[Classified]) -> list[str]:
        return (
            best_model.predict(scaler.transform(to_features(examples))).tolist() if examples else []
        )

    return predict


def _sklearn(module: str) -> Any:
    try:
        return import_module(f"sklearn.{module}")
    except ImportError:
        raise ElmoError(
            "baselines need scikit-learn: pip install 'elmo-pipeline[sklearn]'"
        ) from None
