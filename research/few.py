"""Compare what simple models and `elmo task train` learn from a few labels.

A draw is a random sample of labelled examples. The models "by hand" are scikit-learn's logistic
regression, trained on the whole draw: on hand-crafted features, static vectors, ELMo, a general
sentence model, or all of these except the last. `elmo task train` learns from four fifths of the
draw; the rest is its dev file.

Shapes: N items (texts or, for tagging, tokens), D width of an item's vector, T tokens.
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
from pipeline.stages.task_training import source_digest
from pipeline.terminal.progress import say
from research.finding import Finding, command_line, mean_row
from research.probes import static_vectors

# By kind: C of logistic regression on features and on vectors, and the scale of vectors beside
# features. They do well on several data sets; a few examples are too few to choose them.
LOGISTIC_SETTINGS = {"tagging": (100.0, 0.1, 0.3), "classification": (10.0, 0.01, 0.03)}

TASK_TRAIN = "elmo task train"
ALL_BY_HAND = "all, by hand"
FINE_TUNED = "masked LM, fine-tuned"
Result = dict[str, float]  # the score on the test file, CPU seconds


def compare_few_labels(
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
    """For each of `counts`, draw so many examples of `sources["train"]`, `draws` times; learn from
    each draw in each way and score on `sources["test"]`.

    The draws use `models` in turn. `static` maps names to files of word vectors. `peer` is the
    Python of an environment with all-MiniLM-L6-v2, or None; `masked` is a folder that
    `masked_lm.py` wrote with it, or None. Finished results are kept in `work`, so that an
    interrupted comparison resumes, and draws and ways can be added.
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
    static_digests = {name: sha256(path) for name, path in static.items()}
    model_digests = [model_digest(model) for model in models]
    identity = [kind, digests, dict(columns), *model_digests, LOGISTIC_SETTINGS]
    folder = work.absolute() / f"few-{digest(identity)[:16]}"
    rows = []
    with work_folder_lock(folder):
        sentences = distinct_sentences([*data["train"].examples, *data["test"].examples])
        common_vectors = {k: _window_vectors(v, sentences, kind) for k, v in static.items()}
        if peer:
            common_vectors |= {"MiniLM": _peer_vectors(peer, kind)}
            common_vectors |= {"masked LM": _peer_vectors(peer, kind, masked)} if masked else {}
        vectors_by_model = [_read_softmax_rows(model, kind) | common_vectors for model in models]
        hand_ways = [f"{name}, by hand" for name in ("features", *vectors_by_model[0], "ELMo")]
        tasks: dict[str, Any] = {TASK_TRAIN: RESULTS_VERSION}
        tasks |= {f"{TASK_TRAIN}, {k}": [RESULTS_VERSION, v] for k, v in static_digests.items()}
        versions: dict[str, Any] = {ALL_BY_HAND: static_digests} | tasks
        versions |= {f"{k}, by hand": v for k, v in static_digests.items()}
        tune = None
        if peer and masked:
            masked_ways = ("masked LM, by hand", FINE_TUNED)
            versions |= dict.fromkeys(masked_ways, sha256(masked / "model.safetensors"))
            tune = partial(_fine_tune_masked, peer, masked) if kind == "tagging" else None
        ways = ["most frequent label", *hand_ways, *[FINE_TUNED] * bool(tune), ALL_BY_HAND, *tasks]
        files = {way: f"{digest([way, versions.get(way)])[:16]}.json" for way in ways}
        for count, draw_count in zip(counts, draws, strict=True):
            results = []
            for draw in range(draw_count):
                paths = {way: folder / f"{count}-{draw}" / file for way, file in files.items()}
                if pending_ways := [way for way, path in paths.items() if not path.exists()]:
                    examples = random.Random(draw).sample(data["train"].examples, count)
                    k = draw % len(models)
                    args = (models[k], folder, vectors_by_model[k], static, tune, pending_ways)
                    for way, result in _score_ways(kind, data, examples, *args):
                        paths[way].parent.mkdir(exist_ok=True)
                        write_json(paths[way], result)
                results.append({way: read_record(path, Result) for way, path in paths.items()})
                say(f"{count} examples, draw {draw}: {results[-1]}")
            for way in results[0]:
                scores = [result[way]["score"] for result in results]
                extra = {"examples": count, "lowest": min(scores), "highest": max(scores)}
                extra["seconds"] = fmean(result[way]["seconds"] for result in results)
                rows.append(mean_row(f"{way}, {count}", scores, extra))
    return Finding(
        format=1,
        kind="few",
        task=kind,
        metric="accuracy" if data["train"].scheme == "plain" else "f1",
        command=command_line(),
        model=model_digests[0],
        data=digests
        | {f"static {name}": digest for name, digest in static_digests.items()}
        | {f"model {k}": digest for k, digest in enumerate(model_digests[1:], 2)},
        examples={"test": len(data["test"].examples)},
        seeds=list(range(max(draws))),
        settings={},
        rows=rows,
    )


def _score_ways(
    kind: str,
    data: Mapping[str, Any],
    examples: Sequence[Any],
    model: Path,
    folder: Path,
    vector_sources: Mapping[str, Vectors],
    static: Mapping[str, Path],
    fine_tune: Callable[..., list[Any]] | None,
    pending_ways: Sequence[str],
) -> Iterator[tuple[str, Result]]:
    """Train in each of `pending_ways` on the `examples` of a draw; yield the way and its result.
    `vector_sources` are vectors other than those of ELMo, `static` files of word vectors."""
    from scipy import sparse

    test, train = data["test"].examples, data["train"]
    sparse_c, dense_c, vector_scale = LOGISTIC_SETTINGS[kind]
    store = partial(build_sentence_store, model=model, layers=None)
    test_vectors = store(distinct_sentences(test), work=folder)
    work = folder / "draw"  # emptied for each draw, so that its whole CPU time is counted
    shutil.rmtree(work, ignore_errors=True)
    start_seconds = _cpu_seconds()
    example_vectors = store(distinct_sentences(examples), work=work)
    embedding_seconds = _cpu_seconds() - start_seconds
    sides = (examples, test)
    build_by_input: dict[str, Callable[[], list[Any]]] = {
        "features": partial(_feature_matrices, kind, *sides)
    }
    for name, vectors in vector_sources.items():
        build_by_input[name] = partial(_scaled_vectors, kind, sides, (vectors, vectors))
    build_by_input["ELMo"] = partial(_scaled_vectors, kind, sides, (example_vectors, test_vectors))

    def predict_by_hand(names: Sequence[str]) -> list[Any]:
        blocks = [build_by_input[name]() for name in names]
        if len(names) == 1:
            return _predict(blocks[0], *sides, sparse_c if "features" in names else dense_c)
        scaled = [blocks[0], *([vector_scale * side for side in block] for block in blocks[1:])]
        x = [sparse.hstack(part, format="csr") for part in zip(*scaled, strict=True)]
        return _predict(x, *sides, sparse_c)

    def predict_with_task(**words: Any) -> list[Any]:
        cut = len(examples) * 4 // 5
        parts = [replace(train, examples=list(part)) for part in (examples[:cut], examples[cut:])]
        out, settings = work / f"task-{len(words)}", task_settings(kind, words)
        train_task(kind, *parts, out=out, settings=settings, model=model, work=work)
        task = Task.load(out, vectors=test_vectors)
        return [prediction for _, prediction in task.predict(test)]

    combined_names = [name for name in build_by_input if name not in ("MiniLM", "masked LM")]
    ways: dict[str, Callable[[], list[Any]]] = {
        "most frequent label": partial(_predict_most_frequent, kind, *sides),
        **{f"{name}, by hand": partial(predict_by_hand, [name]) for name in build_by_input},
        ALL_BY_HAND: partial(predict_by_hand, combined_names),
        TASK_TRAIN: predict_with_task,
    }
    for name, path in static.items():
        words = {"words": "file", "word_file": str(path), "word_dim": _vector_width(path)}
        ways[f"{TASK_TRAIN}, {name}"] = partial(predict_with_task, **words)
    if fine_tune:
        ways[FINE_TUNED] = partial(fine_tune, examples, test)
    labels = sorted({label for example in examples for label in _labels(example)})
    gold = [label for example in test for label in _labels(example)]
    for name, vectors in vector_sources.items():  # caches those of the test file untimed
        if f"{name}, by hand" in pending_ways:
            vectors([example.tokens for example in test])
    for way in pending_ways:
        start_seconds = _cpu_seconds()
        answers = ways[way]()
        seconds = _cpu_seconds() - start_seconds
        seconds += embedding_seconds if way.startswith(("ELMo", "elmo", "all")) else 0.0
        is_tagging = kind == "tagging"
        tally = tally_tags(test, answers, labels) if is_tagging else tally_accuracy(gold, answers)
        yield way, {"score": main_score(tally.scores()), "seconds": round(seconds, 2)}
    shutil.rmtree(work)


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and its finished child processes."""
    return sum(os.times()[:4])


def _window_vectors(path: Path, sentences: Sequence[Tokens], kind: str) -> Vectors:
    """Return a function for the static vectors of tokens of `sentences`; for tagging, each token
    also has those of two neighbours on either side."""
    lookup, window = static_vectors(path, sentences), 2 if kind == "tagging" else 0

    def vectors(batch: Sequence[Tokens]) -> list[Any]:
        padded = [np.pad(lookup(tokens), ((window, window), (0, 0))) for tokens in batch]
        return [
            np.hstack([x[k : len(x) - 2 * window + k] for k in range(2 * window + 1)])[None]
            for x in padded
        ]

    return vectors


def _vector_width(path: Path) -> int:
    """Return the width of the vectors in a word2vec or GloVe file."""
    with path.open(encoding="utf-8") as file:
        fields = file.readline().split()
    return int(fields[1]) if len(fields) == 2 else len(fields) - 1


def _read_softmax_rows(model: Path, kind: str) -> dict[str, Vectors]:
    with local_folder(model_location(model)) as folder:
        softmax = softmax_vectors(folder, window=2 if kind == "tagging" else 0)
    return {"softmax rows": softmax} if softmax else {}


def _fine_tune_masked(
    python: str, folder: Path, examples: Sequence[Any], test: Sequence[Any]
) -> list[Any]:
    """Fine-tune a masked language model on `examples`; return its tags of `test`."""
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


def _peer_vectors(python: str, kind: str, folder: Path | None = None) -> Vectors:
    """Return a function for the vectors of a sentence-transformer, or of the masked language model
    in `folder`: all layers of each token, or one vector per text."""
    from benchmarks.search import SentenceTransformer

    @lru_cache(maxsize=2)  # the test file and the draw
    def embed(sentences: tuple[Tokens, ...]) -> list[Any]:
        texts = [" ".join(tokens) for tokens in sentences]
        if kind != "tagging":
            model = SentenceTransformer(python, texts, sentences[:1], folder)
            return [vector[None, None] for vector in model.embed(texts)]
        model = SentenceTransformer(python, texts[:1], sentences, folder)
        ends = np.cumsum([len(tokens) for tokens in sentences])[:-1]
        return [layers[None] for layers in np.split(model.tokens, ends)]

    return lambda sentences: embed(tuple(sentences))


def _feature_matrices(kind: str, examples: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    """Return the features of the items of both sides, (N, features). Only features that occur in
    `examples` count; those of texts are weighted by TF-IDF."""
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
    """Return all layers of each item of both sides, (N, D), scaled to a variance of 1. The vector
    of a text is the mean of its tokens."""
    from sklearn.preprocessing import StandardScaler

    tables = []
    for side, vectors in zip(sides, sources, strict=True):
        embedded = vectors([example.tokens for example in side])
        rows = [layers.transpose(1, 0, 2).reshape(layers.shape[1], -1) for layers in embedded]
        means = [row.mean(0, keepdims=True) for row in rows]
        tables.append(np.concatenate(rows if kind == "tagging" else means).astype(np.float32))
    scaler = StandardScaler().fit(tables[0])
    return [scaler.transform(table) for table in tables]


def _predict(x: Sequence[Any], examples: Sequence[Any], test: Sequence[Any], c: float) -> list[Any]:
    """Fit logistic regression on `examples` and return its labels of `test`; `x` are the inputs."""
    from sklearn.linear_model import LogisticRegression

    labels = [label for example in examples for label in _labels(example)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not quite converged
        logistic = LogisticRegression(C=c, max_iter=100).fit(x[0], labels)
    answers = iter(logistic.predict(x[1]).tolist())
    predictions = [[next(answers) for _ in _labels(example)] for example in test]
    return predictions if hasattr(test[0], "tags") else [label for (label,) in predictions]


def _predict_most_frequent(kind: str, examples: Sequence[Any], test: Sequence[Any]) -> list[Any]:
    if kind == "tagging":
        predict_tag = most_frequent_tagger((example.tokens, example.tags) for example in examples)
        return [[predict_tag(word) for word in example.tokens] for example in test]
    labels = [example.label for example in examples]
    return [max(sorted(set(labels)), key=labels.count)] * len(test)


def _labels(example: Any) -> Sequence[str]:
    return example.tags if hasattr(example, "tags") else [example.label]
