"""The worth of a few labels: to models that a team could put together, and to `elmo task train`.

Each draw is of so many labelled examples. A model by hand is logistic regression of scikit-learn on
all of them; `elmo task train` learns from four fifths, the rest being its dev file.

Shapes: N items (texts or, for tagging, tokens), D numbers of an item's vectors, T tokens.
"""

import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.folders import local_folder
from elmo.io.locks import work_folder_lock
from elmo.io.records import digest, read_record
from elmo.model.config import model_location, read_config
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.baselines import most_frequent_tagger
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import distinct_sentences, learnable_examples
from elmo.tasks.features import tagging_features, words_and_pairs
from elmo.tasks.kinds import task_settings
from elmo.tasks.metrics import main_score, tally_accuracy
from elmo.tasks.tagging import tally_tags
from elmo.tasks.task import Task, train_task
from elmo.tasks.vectors import Vectors, build_sentence_store, softmax_vectors
from pipeline.terminal.progress import say
from pipeline.tracking.task_runs import source_digest
from research.finding import Finding, command_line, mean_row

# Strength of features, of vectors, and the scale of vectors beside features, by kind: values that
# do well on several sets, since some tens of examples cannot choose them.
STRENGTHS = {"tagging": (100.0, 0.1, 0.3), "classification": (10.0, 0.01, 0.03)}


Results = dict[str, tuple[float, float]]  # way → score on the test file, CPU seconds


def few_labels(
    kind: str,
    sources: Mapping[str, Path],
    model: Path,
    *,
    columns: Mapping[str, str],
    counts: Sequence[int],
    draws: int,
    work: Path,
) -> Finding:
    """Learn in each way from `draws` draws of each number of examples of `sources["train"]`; score
    on `sources["test"]`.

    What was finished before an interruption is kept in `work`, so more draws can be added.
    """
    tokenizer = read_config(model).tokenizer
    data = {
        split: read_examples(kind, path, columns=dict(columns), tokenizer=tokenizer)
        for split, path in sources.items()
    }
    data = {k: replace(v, examples=learnable_examples(v.examples)) for k, v in data.items()}
    if max(counts) > (count := len(data["train"].examples)):
        raise ElmoError(f"{sources['train']}: has {count:,} labelled examples; lower --counts")
    digests = {split: source_digest(split, path) for split, path in sources.items()}
    made_from = [kind, digests, dict(columns), model_digest(model), RESULTS_VERSION, STRENGTHS]
    folder = work.absolute() / f"few-{digest(made_from)[:16]}"
    rows = []
    with work_folder_lock(folder):
        for count in counts:
            results = []
            for draw in range(draws):
                path = folder / f"{count}-{draw}.json"
                if not path.exists():
                    examples = random.Random(draw).sample(data["train"].examples, count)
                    result = _learn(kind, data, examples, model, folder)
                    write_json(path, result)
                results.append(read_record(path, Results))
                say(f"{count} examples, draw {draw}: {results[-1]}")
            for way in results[0]:
                scores = [result[way][0] for result in results]
                figures = {"examples": count, "lowest": min(scores), "highest": max(scores)}
                figures["seconds"] = fmean(result[way][1] for result in results)
                rows.append(mean_row(f"{way}, {count}", scores, figures))
    return Finding(
        format=1,
        kind="few",
        task=kind,
        metric="accuracy" if data["train"].scheme == "plain" else "f1",
        command=command_line(),
        model=model_digest(model),
        data=digests,
        examples={"test": len(data["test"].examples)},
        seeds=list(range(draws)),
        settings={},
        rows=rows,
    )


def _learn(
    kind: str, data: Mapping[str, Any], examples: Sequence[Any], model: Path, folder: Path
) -> Results:
    """Return what each way learns from the `examples` of a draw."""
    from scipy import sparse

    test, train = data["test"].examples, data["train"]
    strength, dense_strength, scale = STRENGTHS[kind]
    store = partial(build_sentence_store, model=model, work=folder, layers=None)
    of_test = store(distinct_sentences(test))
    start = time.process_time()
    of_examples = store(distinct_sentences(examples))
    embedding = time.process_time() - start
    with local_folder(model_location(model)) as local:
        static = softmax_vectors(local, window=2 if kind == "tagging" else 0)
    sides = (examples, test)
    readers: dict[str, Callable[[], list[Any]]] = {"features": partial(_features, kind, *sides)}
    if static is not None:
        readers["static vectors"] = partial(_scaled_vectors, kind, sides, (static, static))
    readers["ELMo"] = partial(_scaled_vectors, kind, sides, (of_examples, of_test))

    def by_hand(names: Sequence[str]) -> list[Any]:
        blocks = [readers[name]() for name in names]
        if len(names) == 1:
            return _fit(blocks[0], *sides, strength if "features" in names else dense_strength)
        scaled = [blocks[0], *([scale * side for side in block] for block in blocks[1:])]
        x = [sparse.hstack(part, format="csr") for part in zip(*scaled, strict=True)]
        return _fit(x, *sides, strength)

    def with_task() -> list[Any]:
        cut = len(examples) * 4 // 5
        parts = [replace(train, examples=list(part)) for part in (examples[:cut], examples[cut:])]
        out, settings = folder / "task", task_settings(kind, {})
        train_task(kind, *parts, out=out, settings=settings, model=model, work=folder)
        task = Task.load(out, vectors=of_test)
        return [guess for _, guess in task.predict(test)]

    ways: dict[str, Callable[[], list[Any]]] = {
        "most frequent label": partial(_most_frequent, kind, *sides),
        **{f"{name}, by hand": partial(by_hand, [name]) for name in readers},
        "all, by hand": partial(by_hand, list(readers)),
        "elmo task train": with_task,
    }
    results: Results = {}
    labels = sorted({label for example in examples for label in _labels(example)})
    gold = [label for example in test for label in _labels(example)]
    for way, learn in ways.items():
        start = time.process_time()
        guesses = learn()
        seconds = time.process_time() - start
        seconds += embedding if way.startswith(("ELMo", "elmo", "all")) else 0.0
        is_tagging = kind == "tagging"
        tally = tally_tags(test, guesses, labels) if is_tagging else tally_accuracy(gold, guesses)
        results[way] = (main_score(tally.scores()), round(seconds, 2))
    return results


def _features(kind: str, examples: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    """Return the ordinary features of the items of both, (N, features): those that `examples`
    have; a text's are weighted by TF-IDF."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    sides: list[list[Any]] = [[example.tokens for example in side] for side in (examples, test)]
    counter = TfidfVectorizer(analyzer=words_and_pairs, sublinear_tf=True, dtype=np.float32)
    if kind == "tagging":
        sides = [[bag for tokens in side for bag in tagging_features(tokens)] for side in sides]
        counter = CountVectorizer(analyzer=list, binary=True, dtype=np.float32)
    return [counter.fit_transform(sides[0]), counter.transform(sides[1])]


def _scaled_vectors(
    kind: str, sides: Sequence[Sequence[Any]], sources: Sequence[Vectors]
) -> list[Any]:
    """Return all layers of each item of both sides, (N, D), scaled to a variance of 1; a text's are
    the means of its tokens'."""
    from sklearn.preprocessing import StandardScaler

    tables = []
    for side, vectors in zip(sides, sources, strict=True):
        embedded = vectors([example.tokens for example in side])
        rows = [layers.transpose(1, 0, 2).reshape(layers.shape[1], -1) for layers in embedded]
        means = [row.mean(0, keepdims=True) for row in rows]
        tables.append(np.concatenate(rows if kind == "tagging" else means).astype(np.float32))
    scaler = StandardScaler().fit(tables[0])
    return [scaler.transform(table) for table in tables]


def _fit(
    x: Sequence[Any], examples: Sequence[Any], test: Sequence[Any], strength: float
) -> list[Any]:
    """Return the answers of logistic regression for each of `test`, `x` being what it reads."""
    from sklearn.linear_model import LogisticRegression

    labels = [label for example in examples for label in _labels(example)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is nearly converged
        logistic = LogisticRegression(C=strength, max_iter=100).fit(x[0], labels)
    answers = iter(logistic.predict(x[1]).tolist())
    shaped = [[next(answers) for _ in _labels(example)] for example in test]
    return shaped if hasattr(test[0], "tags") else [answer for (answer,) in shaped]


def _most_frequent(kind: str, examples: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    if kind == "tagging":
        tag_of = most_frequent_tagger((example.tokens, example.tags) for example in examples)
        return [[tag_of(word) for word in example.tokens] for example in test]
    labels = [example.label for example in examples]
    return [max(sorted(set(labels)), key=labels.count)] * len(test)


def _labels(example: Any) -> Sequence[str]:
    return example.tags if hasattr(example, "tags") else [example.label]
