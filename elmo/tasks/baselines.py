"""Simple baselines for a task's score, each fitted on the training file alone.

`majority` predicts the most frequent label, or for a tagger the most frequent tag of each word.
`features` is a linear model of hand-crafted features: the shape, affixes and neighbours of a word,
or TF-IDF weights of a text's words and word pairs. `static` is a linear model on the biLM's
context-free word vectors (layer 0): one at a time for a tagger, else averaged over a text.

Shapes: W words, T tokens of a sentence, D the width of a word's vector.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from elmo.data.arrays import Floats
from elmo.tasks.examples import Tokens, learnable_examples
from elmo.tasks.features import LinearModels, ModelShares
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.kinds import FEATURE_HASHES, KINDS_WITH_FEATURES
from elmo.tasks.metrics import Tally, tally_accuracy
from elmo.tasks.tagging import tally_tags

EncodeWords = Callable[[Sequence[str]], Floats]  # words → their vectors (W, D)


def score_baselines(
    kind: str, train_set: ExampleSet, test_set: ExampleSet, encode: EncodeWords | None
) -> dict[str, Tally]:
    """Train the baselines of a kind of task on `train_set` and score them on `test_set`; return
    their tallies by name.

    `encode` returns the context-free vectors (layer 0) of words, for `static`. Questions, roles and
    coreference have no baselines.
    """
    train: list[Any] = learnable_examples(train_set.examples)
    test: list[Any] = test_set.examples
    if kind not in KINDS_WITH_FEATURES or not train:
        return {}
    guesses: dict[str, list[Any]] = {}
    tally: Callable[..., Tally]
    if kind == "tagging":
        labels = sorted({tag for example in train for tag in example.tags})
        predict_tag = most_frequent_tagger((example.tokens, example.tags) for example in train)
        guesses["majority"] = [[predict_tag(word) for word in example.tokens] for example in test]
        tally = partial(tally_tags, test, labels=labels)
    else:
        label_counts = Counter(example.label for example in train)
        labels = sorted(label_counts)
        guesses["majority"] = [_most_common(label_counts)] * len(test)
        tally = partial(tally_accuracy, [example.label for example in test])
    vectors = partial(_static_vectors, encode) if encode and kind != "pairs" else None
    models = LinearModels(FEATURE_HASHES, len(labels))
    models.fit(train, labels, vectors)
    guesses["features"] = models.predict(test, labels)
    if vectors is not None:
        models.shares = ModelShares(network=0.0, features=0.0, vectors=1.0)
        guesses["static"] = models.predict(test, labels, vectors)
    return {name: tally(predictions) for name, predictions in guesses.items()}


def _static_vectors(encode: EncodeWords, sentences: Sequence[Tokens]) -> list[Floats]:
    """Return the context-free vectors of each sentence as one layer, (1, T, D)."""
    words = list(dict.fromkeys(word for sentence in sentences for word in sentence))
    row_by_word = {word: row for row, word in enumerate(words)}
    vectors_WD = encode(words)
    return [vectors_WD[None, [row_by_word[word] for word in tokens]] for tokens in sentences]


def most_frequent_tagger(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]],
) -> Callable[[str], str]:
    """Return a function that gives a word the tag it has most often in `sentences`.

    A sentence is its tokens and their tags. An unknown word gets the most frequent tag of all
    words. Of equally frequent tags, the alphabetically first is chosen.
    """
    tag_counts_by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for tokens, tags in sentences:
        for word, tag in zip(tokens, tags, strict=True):
            tag_counts_by_word[word][tag] += 1
    tag_by_word = {word: _most_common(tags) for word, tags in tag_counts_by_word.items()}
    fallback_tag = _most_common(sum(tag_counts_by_word.values(), Counter[str]()))
    return lambda word: tag_by_word.get(word, fallback_tag)


def _most_common(counts: Counter[str]) -> str:
    """Return the most frequent value; of equally frequent ones, the first in alphabetical order."""
    return min(counts, key=lambda value: (-counts[value], value))
