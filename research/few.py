"""The worth of a few labels: to models that a team could put together, and to `elmo task train`.

Each draw is of so many labelled examples. A model by hand is logistic regression of scikit-learn on
all of them: of ordinary features, static vectors, ELMo's and those of a general sentence model; of
all but the last together. `elmo task train` learns from four fifths, the rest being its dev file.

Shapes: N items (texts or, for tagging, tokens), D numbers of an item's vectors, T tokens.
"""

import json
import os
import random
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.folders import local_folder
from elmo.io.locks import work_folder_lock
from elmo.io.records import digest, read_record, sha256
from elmo.model.config import model_location, read_config
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.baselines import most_frequent_tagger
from elmo.tasks.example_files import read_examples
from elmo.tasks.examples import Tokens, distinct_sentences, learnable_examples
from elmo.tasks.features import tagging_features, words_and_pairs
from elmo.tasks.kinds import task_settings
from elmo.tasks.metrics import main_score, tally_accuracy
from elmo.tasks.tagging import tally_tags
from elmo.tasks.task import Task, train_task
from elmo.tasks.vectors import Vectors, build_sentence_store, softmax_vectors
from pipeline.terminal.progress import say
from pipeline.tracking.task_runs import source_digest
from research.finding import Finding, command_line, mean_row
from research.probes import static_vectors

# Strength of features, of vectors, and the scale of vectors beside features, by kind: values that
# do well on several sets, since some tens of examples cannot choose them.
STRENGTHS = {"tagging": (100.0, 0.1, 0.3), "classification": (10.0, 0.01, 0.03)}


TASK = "elmo task train"
ALL = "all, by hand"
TUNED = "masked LM, fine-tuned"
Result = dict[str, float]  # the score on the test file, CPU seconds


def few_labels(
    kind: str,
    sources: Mapping[str, Path],
    models: Sequence[Path],
    *,
    columns: Mapping[str, str],
    counts: Sequence[int],
    draws: Sequence[int],
    static: Mapping[str, Path],
    peer: str | None,
    masked: Path | None,
    work: Path,
) -> Finding:
    """Learn in each way from so many `draws` of each of `counts` of examples of `sources["train"]`;
    score on `sources["test"]`.

    Draw k uses the k-th of `models`, and then the first again. `static` maps names to files of word
    vectors; `peer` is the Python of an environment that has all-MiniLM-L6-v2, or None; `masked` is
    a folder that `masked_lm.py` wrote there, or None. What was finished before an interruption is
    kept in `work`, so more draws and ways can be added.
    """
    tokenizer = read_config(models[0]).tokenizer
    data = {
        split: read_examples(kind, path, columns=dict(columns), tokenizer=tokenizer)
        for split, path in sources.items()
    }
    data = {k: replace(v, examples=learnable_examples(v.examples)) for k, v in data.items()}
    if max(counts) > (count := len(data["train"].examples)):
        raise ElmoError(f"{sources['train']}: has {count:,} labelled examples; lower --counts")
    digests = {split: source_digest(split, path) for split, path in sources.items()}
    of_files = {name: sha256(path) for name, path in static.items()}
    of_models = [model_digest(model) for model in models]
    made_from = [kind, digests, dict(columns), *of_models, STRENGTHS]
    folder = work.absolute() / f"few-{digest(made_from)[:16]}"
    rows = []
    with work_folder_lock(folder):
        sentences = distinct_sentences([*data["train"].examples, *data["test"].examples])
        common = {name: _windows(path, sentences, kind) for name, path in static.items()}
        if peer:
            common |= {"MiniLM": _sentence_model(peer, kind)}
            common |= {"masked LM": _sentence_model(peer, kind, masked)} if masked else {}
        of_draws = [_softmax_rows(model, kind) | common for model in models]
        by_hand = [f"{name}, by hand" for name in ("features", *of_draws[0], "ELMo")]
        tasks: dict[str, Any] = {TASK: RESULTS_VERSION}
        tasks |= {f"{TASK}, {name}": [RESULTS_VERSION, file] for name, file in of_files.items()}
        parts: dict[str, Any] = {ALL: of_files} | tasks
        parts |= {f"{name}, by hand": file for name, file in of_files.items()}
        tune = None
        if peer and masked:
            parts["masked LM, by hand"] = parts[TUNED] = sha256(masked / "model.safetensors")
            tune = partial(_tune_masked, peer, masked) if kind == "tagging" else None
        files = {
            way: f"{digest([way, parts.get(way)])[:16]}.json"
            for way in ("most frequent label", *by_hand, *([TUNED] if tune else []), ALL, *tasks)
        }
        for count, draw_count in zip(counts, draws, strict=True):
            results = []
            for draw in range(draw_count):
                paths = {way: folder / f"{count}-{draw}" / file for way, file in files.items()}
                if pending_ways := [way for way, path in paths.items() if not path.exists()]:
                    examples = random.Random(draw).sample(data["train"].examples, count)
                    turn = draw % len(models)
                    args = (models[turn], folder, of_draws[turn], static, tune, pending_ways)
                    for way, result in _learn(kind, data, examples, *args):
                        paths[way].parent.mkdir(exist_ok=True)
                        write_json(paths[way], result)
                results.append({way: read_record(path, Result) for way, path in paths.items()})
                say(f"{count} examples, draw {draw}: {results[-1]}")
            for way in results[0]:
                scores = [result[way]["score"] for result in results]
                figures = {"examples": count, "lowest": min(scores), "highest": max(scores)}
                figures["seconds"] = fmean(result[way]["seconds"] for result in results)
                rows.append(mean_row(f"{way}, {count}", scores, figures))
    return Finding(
        format=1,
        kind="few",
        task=kind,
        metric="accuracy" if data["train"].scheme == "plain" else "f1",
        command=command_line(),
        model=of_models[0],
        data=digests
        | {f"static {name}": digest for name, digest in of_files.items()}
        | {f"model {k}": digest for k, digest in enumerate(of_models[1:], 2)},
        examples={"test": len(data["test"].examples)},
        seeds=list(range(max(draws))),
        settings={},
        rows=rows,
    )


def _learn(
    kind: str,
    data: Mapping[str, Any],
    examples: Sequence[Any],
    model: Path,
    folder: Path,
    vector_sources: Mapping[str, Vectors],
    static: Mapping[str, Path],
    tune: Callable[..., list[Any]] | None,
    pending_ways: Sequence[str],
) -> Iterator[tuple[str, Result]]:
    """Yield each of `pending_ways` with the result of what it learns from the `examples` of a draw;
    `vector_sources` are the vectors beside ELMo's, `static` files of them."""
    from scipy import sparse

    test, train = data["test"].examples, data["train"]
    strength, dense_strength, scale = STRENGTHS[kind]
    store = partial(build_sentence_store, model=model, layers=None)
    of_test = store(distinct_sentences(test), work=folder)
    work = folder / "draw"  # what a draw needs alone, made anew so that its time is counted
    shutil.rmtree(work, ignore_errors=True)
    start = _cpu_seconds()
    of_examples = store(distinct_sentences(examples), work=work)
    embedding = _cpu_seconds() - start
    sides = (examples, test)
    readers: dict[str, Callable[[], list[Any]]] = {"features": partial(_features, kind, *sides)}
    readers |= {
        name: partial(_scaled_vectors, kind, sides, (vectors, vectors))
        for name, vectors in vector_sources.items()
    }
    readers["ELMo"] = partial(_scaled_vectors, kind, sides, (of_examples, of_test))

    def by_hand(names: Sequence[str]) -> list[Any]:
        blocks = [readers[name]() for name in names]
        if len(names) == 1:
            return _fit(blocks[0], *sides, strength if "features" in names else dense_strength)
        scaled = [blocks[0], *([scale * side for side in block] for block in blocks[1:])]
        x = [sparse.hstack(part, format="csr") for part in zip(*scaled, strict=True)]
        return _fit(x, *sides, strength)

    def with_task(**words: Any) -> list[Any]:
        cut = len(examples) * 4 // 5
        parts = [replace(train, examples=list(part)) for part in (examples[:cut], examples[cut:])]
        out, settings = work / f"task-{len(words)}", task_settings(kind, words)
        train_task(kind, *parts, out=out, settings=settings, model=model, work=work)
        task = Task.load(out, vectors=of_test)
        return [guess for _, guess in task.predict(test)]

    ways: dict[str, Callable[[], list[Any]]] = {
        "most frequent label": partial(_most_frequent, kind, *sides),
        **{f"{name}, by hand": partial(by_hand, [name]) for name in readers},
        ALL: partial(by_hand, [name for name in readers if name not in ("MiniLM", "masked LM")]),
        TASK: with_task,
    }
    for name, path in static.items():
        words = {"words": "file", "word_file": str(path), "word_dim": _width(path)}
        ways[f"{TASK}, {name}"] = partial(with_task, **words)
    if tune:
        ways[TUNED] = partial(tune, examples, test)
    labels = sorted({label for example in examples for label in _labels(example)})
    gold = [label for example in test for label in _labels(example)]
    for name, vectors in vector_sources.items():  # those of the test file are no work of a draw
        if f"{name}, by hand" in pending_ways:
            vectors([example.tokens for example in test])
    for way in pending_ways:
        start = _cpu_seconds()
        guesses = ways[way]()
        seconds = _cpu_seconds() - start
        seconds += embedding if way.startswith(("ELMo", "elmo", "all")) else 0.0
        is_tagging = kind == "tagging"
        tally = tally_tags(test, guesses, labels) if is_tagging else tally_accuracy(gold, guesses)
        yield way, {"score": main_score(tally.scores()), "seconds": round(seconds, 2)}
    shutil.rmtree(work)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


def _windows(path: Path, sentences: Sequence[Tokens], kind: str) -> Vectors:
    """Return the vectors of a file for `sentences`: of a token, for tagging with those of two
    neighbours on either side."""
    of_tokens, window = static_vectors(path, sentences), 2 if kind == "tagging" else 0

    def vectors(batch: Sequence[Tokens]) -> list[Any]:
        padded = [np.pad(of_tokens(tokens), ((window, window), (0, 0))) for tokens in batch]
        return [
            np.hstack([x[k : len(x) - 2 * window + k] for k in range(2 * window + 1)])[None]
            for x in padded
        ]

    return vectors


def _width(path: Path) -> int:
    """Return the numbers per word of a word2vec or GloVe file."""
    with path.open(encoding="utf-8") as file:
        fields = file.readline().split()
    return int(fields[1]) if len(fields) == 2 else len(fields) - 1


def _softmax_rows(model: Path, kind: str) -> dict[str, Vectors]:
    with local_folder(model_location(model)) as folder:
        softmax = softmax_vectors(folder, window=2 if kind == "tagging" else 0)
    return {"softmax rows": softmax} if softmax else {}


def _tune_masked(
    python: str, folder: Path, examples: Sequence[Any], test: Sequence[Any]
) -> list[Any]:
    """Return the tags of `test` by a masked language model, all of which learns from `examples`."""
    fields: dict[str, Any] = {
        name: [list(x.tokens) for x in side]
        for name, side in (("sentences", examples), ("test", test))
    }
    fields["tags"] = [list(example.tags) for example in examples]
    with tempfile.TemporaryDirectory() as work:
        request, answers = Path(work) / "request.json", Path(work) / "answers.json"
        request.write_text(json.dumps(fields), encoding="utf-8")
        script = str(Path(__file__).parents[1] / "benchmarks" / "masked_lm.py")
        command = [python, script, "tune", str(folder), str(request), str(answers)]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        return list(json.loads(answers.read_text()))


def _sentence_model(python: str, kind: str, folder: Path | None = None) -> Vectors:
    """Return the vectors of a sentence-transformer, or of a masked language model in `folder`: all
    layers of a token, or one of a text."""
    from benchmarks.search import SentenceTransformer

    @lru_cache(maxsize=2)  # the test file's and those of a draw
    def embed(sentences: tuple[Tokens, ...]) -> list[Any]:
        texts = [" ".join(tokens) for tokens in sentences]
        if kind != "tagging":
            model = SentenceTransformer(python, texts, sentences[:1], folder)
            return [vector[None, None] for vector in model.embed(texts)]
        model = SentenceTransformer(python, texts[:1], sentences, folder)
        ends = np.cumsum([len(tokens) for tokens in sentences])[:-1]
        return [layers[None] for layers in np.split(model.tokens, ends)]

    return lambda sentences: embed(tuple(sentences))


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
