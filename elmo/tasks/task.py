"""A trained task, kept in a folder: training, loading, evaluation and prediction.

Shapes: as in `elmo.tasks.features`, U rows of weights, D numbers of an item's vectors, K labels.
"""

import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from msgspec import Meta

from elmo.data.texts import list_items
from elmo.data.tokenizer import NO_TOKENIZER, Tokenization
from elmo.errors import ElmoError, Mismatch, first_line
from elmo.io.atomic import check_writable, write_json
from elmo.io.folders import check_output_folder, new_folder
from elmo.io.location import Location
from elmo.io.records import check_sha256, digest, read_record
from elmo.model.config import read_config
from elmo.model.embedder import Embedder
from elmo.model.folder import link_model
from elmo.model.weights import load_weights, save_weights
from elmo.nn.device import check_device
from elmo.settings import ModelShape, Seed, check_iterable, check_value
from elmo.store import FeatureStore, model_digest
from elmo.tasks import RESULTS_VERSION, TASK_FILE
from elmo.tasks.example_files import make_examples
from elmo.tasks.examples import (
    Example,
    Predicate,
    Tagged,
    distinct_sentences,
    has_gold,
    learnable_examples,
)
from elmo.tasks.features import LinearModels, ModelShares
from elmo.tasks.formats.fields import ExampleSet, token_offsets
from elmo.tasks.inputs import TaskInputs, WordTable, build_word_table
from elmo.tasks.kinds import KINDS
from elmo.tasks.metrics import Scores, Tally, main_score
from elmo.tasks.model import TaskModel
from elmo.tasks.record import (
    TASK_FILE_PATTERN,
    TASK_FORMAT,
    BiLMSource,
    LinearShares,
    TaskRecord,
    best_seed,
    read_task_record,
    write_task_record,
)
from elmo.tasks.seeds import SeedTraining, train_seeds
from elmo.tasks.settings import TaskSettings
from elmo.tasks.train import (
    ReportEpoch,
    TaskProgress,
    add_linear_models,
    check_examples,
    fit_linear_models,
    predict_all,
    report_nothing,
)
from elmo.tasks.vectors import (
    EmbeddedVectors,
    StoredVectors,
    Vectors,
    build_sentence_store,
    softmax_vectors,
)

SeedNumbers = Annotated[list[Seed], Meta(min_length=1, description="a list of whole numbers")]
EXAMPLES_AT_ONCE = 512  # examples predicted at a time


class Task:
    """A trained task, with the weights of one of its seeds. Several threads may use it."""

    def __init__(self, record: TaskRecord, model: TaskModel, vectors: Vectors | None) -> None:
        self.record, self.model, self.vectors = record, model, vectors

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        seed: int | None = None,
        device: str = "cpu",
        vectors: Vectors | None = None,
    ) -> "Task":
        """Load a folder that `train_task` wrote. The default `seed` is the one with the best dev
        score.

        `vectors`, such as a `StoredVectors`, returns the ELMo layers of sentences; by default the
        model in the folder computes them.
        """
        check_device(device)
        folder = Path(folder)
        record = read_task_record(folder)
        if seed is not None and seed not in record.seeds:
            raise ElmoError(f"{folder}: has no seed {seed}; it has {record.seeds}")
        seed = best_seed(record) if seed is None else seed
        seed_folder = f"seed-{seed}"
        for name, expected_sha256 in record.files.items():
            if name == "words.json" or name.startswith(f"{seed_folder}/"):
                check_sha256(folder / name, expected_sha256)
        word_table = WordTable(read_record(folder / "words.json", list[str]), None)
        path = folder / seed_folder / "weights.safetensors"
        if record.bilm is not None and model_digest(folder / "model") != record.bilm.digest:
            raise ElmoError(
                f"{folder / 'model'}: is not the model that the task was trained with; use "
                f"{record.bilm.digest[:12]}…"
            )
        with torch.device("meta"):  # allocates no memory before the shapes are checked
            model = _build_network(record, word_table, seed)
        try:
            model.load_state_dict(load_weights(path, device=device), assign=True)
        except RuntimeError as error:
            problem = first_line(error)
            raise Mismatch(f"{path}: does not fit task.json ({problem}); train again") from None
        model.to(device).eval()
        if model.linear is not None and model.linear.shares.static:
            model.linear.static = _static_vectors(folder / "model", record.kind)
        if record.settings.elmo == "frozen" and vectors is None:
            embedder = Embedder.load(folder / "model", device=device)
            vectors = EmbeddedVectors(embedder, layers=record.settings.layers)
        return cls(record, model, vectors)

    def predict(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Any]]:
        """Yield each example with its prediction, in order. Memory use does not grow with their
        number.

        The prediction depends on the kind of task: a label, a list of tags, a span or clusters.
        `describe` converts it to a dictionary.
        """
        for example, (prediction, _) in self.answer(examples, with_scores=False):
            yield example, prediction

    def answer(
        self, examples: Iterable[Example], *, with_scores: bool = True
    ) -> Iterator[tuple[Example, tuple[Any, Any]]]:
        """Yield each example with its prediction, as `predict` does, and the prediction's scores,
        which are None if not `with_scores`."""
        iterator = check_iterable("examples", examples)
        size = self.record.settings.batch_size
        while chunk := list(islice(iterator, EXAMPLES_AT_ONCE)):
            check_examples(chunk)
            answers = predict_all(self.model, chunk, self.vectors, size, with_scores=with_scores)
            pairs = answers if with_scores else [(prediction, None) for prediction in answers]
            yield from zip(chunk, pairs, strict=True)

    def __call__(self, items: Any) -> Any:
        """Predict for one item or a list of items; return JSON objects as `elmo task predict`
        prints them.

        `items` may also be a column or a table, as `list_items` reads them. An item is a text,
        which the model's tokenizer splits; a list of tokens (only inside a list of items); or a
        record with the fields of JSON lines. For the task `roles`, each item gives a list with one
        object per predicate. An item without tokens gives None. The `ElmoError` for a bad item has
        its index.
        """
        if isinstance(items, str | Mapping):
            return self([items])[0]
        listed_items = list_items(items)
        example_set = make_examples(
            self.record.kind,
            listed_items,
            tokenizer=self.record.tokenizer,
            columns=self.record.columns,
        )
        answers: list[list[Any]] = [[] for _ in listed_items]
        for example, answer in self.answer(example_set.examples):
            index = int(example.source.rpartition(":")[2])
            answers[index].append(self.describe(example, *answer))
        if KINDS[self.record.kind].has_several_predictions:
            return answers
        return [item_answers[0] if item_answers else None for item_answers in answers]

    def describe(self, example: Example, prediction: Any, scores: Any = None) -> dict[str, Any]:
        """Return a prediction as a dictionary for JSON, with the scores that `answer` returns, if
        given.

        Spans have their `text`; if the example was split from a text, also their range of
        `characters` in it.
        """
        answer = self.model.describe(example, prediction, scores)
        spans = [*answer.get("spans", ()), *answer.get("arguments", ())]
        text = example.text if isinstance(example, Tagged | Predicate) else None
        offsets = token_offsets(text, answer["tokens"]) if spans and text is not None else ()
        for span in spans:
            start, stop = span["start"], span["stop"]
            span["text"] = " ".join(answer["tokens"][start:stop])
            if text is not None:
                char_start, char_stop = offsets[start][0], offsets[stop - 1][1]
                span |= {"text": text[char_start:char_stop], "characters": [char_start, char_stop]}
        return answer

    def evaluate(self, example_set: ExampleSet) -> Scores:
        """Return the scores of the task's metric on labelled examples."""
        return self.tally(example_set).scores()

    def tally(self, example_set: ExampleSet) -> Tally:
        """Predict labelled examples; return the tally of the task's metric."""
        check_same_tags(example_set, self.record.scheme)
        for example in example_set.examples:
            if not (has_gold(example) or isinstance(example, Predicate) and example.nested):
                raise ElmoError(f"{example.source}: has no label to compare with; add it")
        guesses = [guess for _, guess in self.predict(example_set.examples)]
        return self.model.tally(example_set.examples, guesses)


def train_task(
    kind: str,
    train: ExampleSet,
    dev: ExampleSet,
    *,
    out: Path | str,
    settings: TaskSettings,
    model: Path | None,
    seeds: Sequence[int] = (0,),
    work: Path | str,
    store: Path | None = None,
    tokenizer: Tokenization = NO_TOKENIZER,
    device: str = "cpu",
    report: ReportEpoch = report_nothing,
) -> TaskRecord:
    """Train a task of kind `kind`, a key of `KINDS`, once per seed; write its folder `out`,
    replacing any task there, and return its record.

    The epoch with the best score on `dev` is kept. `model` is None if `settings.elmo` is `none`.
    `work` holds checkpoints, from which interrupted training resumes, and a store of the sentences'
    vectors, which later runs on the same data reuse. If `store` is given, vectors are read from it
    instead; it must hold exactly these sentences, embedded by `model`. `tokenizer` is recorded; it
    will split raw text at prediction. `report(kind, figures)` is called with `seed` before each
    seed and `epoch` after each epoch, but later if another process trains the seed. A resumed run
    also reports earlier epochs. On a CPU, a seed uses one thread. If it saves time, seeds are
    trained in parallel, one process per torch thread, with the same result.
    """
    out, work = Path(out), Path(work)
    seeds = check_value("seeds", [*check_iterable("seeds", seeds)], SeedNumbers)
    check_device(device)
    _check_input(settings, model, train, dev)
    check_examples([*train.examples, *dev.examples])
    check_output_folder(Location(out), required=(TASK_FILE,), pattern=TASK_FILE_PATTERN)
    check_writable(out)
    training_examples = _labelled_examples(train)
    table = build_word_table(settings, distinct_sentences(train.examples))  # reads its file first
    sentences = distinct_sentences([*train.examples, *dev.examples])
    vectors, bilm_source = _make_vectors(settings, sentences, model, store, work, device)
    record = _new_record(kind, settings, train, dev, tokenizer, bilm_source, seeds)
    store_digest = vectors.store.digest if isinstance(vectors, StoredVectors) else ""
    origin = [store_digest, torch.device(device).type]
    folders = {seed: work / _fingerprint(record, table, seed, origin) for seed in seeds}
    training = SeedTraining(
        make_network=partial(_new_network, record, table, device),
        train=training_examples,
        dev=dev.examples,
        vectors=vectors,
        settings=settings,
        folders=folders,
    )
    processes = torch.get_num_threads() if device == "cpu" else 1
    train_seeds(training, seeds, report, processes=processes)
    linear: LinearModels | None = None
    with new_folder(Location(out), required=(TASK_FILE,), pattern=TASK_FILE_PATTERN) as new_task:
        write_json(new_task / "words.json", table.words)
        static = None
        if model is not None:
            link_model(model, new_task / "model")
            static = _static_vectors(new_task / "model", kind) if settings.features else None
        for seed in seeds:
            network, progress = training.run(seed, report_nothing)
            figures = progress.curve[progress.best_epoch - 1]
            record.scores[str(seed)] = {k: figures[k] for k in figures if k not in ("loss", "lr")}
            if settings.features:
                linear = linear or fit_linear_models(
                    network, training_examples, vectors=vectors, settings=settings, static=static
                )
                scores, shares, network_scores = add_linear_models(
                    network, linear, dev.examples, vectors=vectors, settings=settings
                )
                record.linear[str(seed)] = _describe_linear(linear, shares, network_scores)
                record.scores[str(seed)] |= scores
            _write_seed(new_task / f"seed-{seed}", network, progress)
        write_task_record(record, new_task)
        for seed in seeds:
            Task.load(new_task, seed=seed, vectors=vectors)  # else nothing is written
    for folder in folders.values():
        shutil.rmtree(folder, ignore_errors=True)
    return record


def _labelled_examples(train: ExampleSet) -> list[Example]:
    """Return the examples to learn from; raise `ElmoError` if there are none."""
    if examples := learnable_examples(train.examples):
        return examples
    source = train.examples[0].source if train.examples else "train"
    raise ElmoError(f"{source}: no example has text and a label to learn from; add one")


def _describe_linear(linear: LinearModels, shares: ModelShares, scores: Scores) -> LinearShares:
    return LinearShares(
        shares.network,
        shares.features,
        shares.vectors,
        rows=len(linear.hash_U),
        width=len(linear.vector_weights_DK),
        network_score=main_score(scores),
        static=shares.static,
        static_width=linear.static_width,
    )


def _check_input(
    settings: TaskSettings, model: Path | None, train: ExampleSet, dev: ExampleSet
) -> None:
    if (model is None) != (settings.elmo == "none"):
        raise ElmoError("pass either a model or the setting elmo: none")
    check_same_tags(dev, train.scheme)
    if model is not None and settings.layers is not None:
        top_layer = ModelShape.from_dict(read_config(model).model, source=str(model)).layers
        for layer in settings.layers:
            if layer > top_layer:
                raise ElmoError(f"layers must be among 0 to {top_layer}, found {layer}")


def check_same_tags(example_set: ExampleSet, scheme: str) -> None:
    """Raise `ElmoError` if only one of `example_set` and the training file has tags that mark
    spans; `scheme` is that of the training file."""
    if (example_set.scheme == "plain") == (scheme == "plain"):
        return
    source = (
        example_set.examples[0].source.rpartition(":")[0] if example_set.examples else "examples"
    )
    if scheme == "plain":
        raise ElmoError(
            f"{source}: the tags mark spans ({example_set.scheme}), unlike those of the training "
            "file; pass --scheme plain, or correct the training file"
        )
    raise ElmoError(
        f"{source}: the tags mark no spans, unlike those of the training file ({scheme}); to see "
        f"the first tag that does not fit, pass --scheme {scheme}"
    )


def unknown_labels(
    kind: str, known_labels: Sequence[str], example_set: ExampleSet, *, scheme: str
) -> list[str]:
    """Return the sorted labels in `example_set` that a task of kind `kind` cannot predict, because
    they are not among its `known_labels`.

    If `scheme` marks spans, labels are returned without B-, I-, E- or S-.
    """
    marks_spans = scheme != "plain"

    def strip(labels: Iterable[str]) -> set[str]:
        return {label[2:] or label if marks_spans else label for label in labels}

    return sorted(
        strip(KINDS[kind].model_class().labels_of(example_set.examples)) - strip(known_labels)
    )


def _new_record(
    kind: str,
    settings: TaskSettings,
    train: ExampleSet,
    dev: ExampleSet,
    tokenizer: Tokenization,
    bilm_source: BiLMSource | None,
    seeds: Sequence[int],
) -> TaskRecord:
    """Return the record of a task before training, without scores."""
    return TaskRecord(
        format=TASK_FORMAT,
        kind=kind,
        settings=settings,
        labels=KINDS[kind].model_class().labels_of(train.examples),
        scheme=train.scheme,
        tokenizer=tokenizer,
        bilm=bilm_source,
        seeds=list(seeds),
        scores={},
        counts={"train": train.counts, "dev": dev.counts},
        data={"train": _digest_examples(train.examples), "dev": _digest_examples(dev.examples)},
        files={},
        digest="",
        columns=train.columns,
    )


def _make_vectors(
    settings: TaskSettings,
    sentences: Sequence[Any],
    model: Path | None,
    store: Path | None,
    work: Path,
    device: str,
) -> tuple[Vectors | None, BiLMSource | None]:
    if model is None:
        return None, None
    bilm_digest = model_digest(model)
    if store is not None:
        vectors = StoredVectors(FeatureStore(store, layers=settings.layers, model=model))
        vectors.check_contains(sentences)
    else:
        vectors = build_sentence_store(
            sentences, model=model, work=work, layers=settings.layers, device=device
        )
    return vectors, BiLMSource(bilm_digest, len(vectors.store.layers), vectors.store.dim)


def _new_network(record: TaskRecord, words: WordTable, device: str, *, seed: int) -> TaskModel:
    """Return the untrained network of a seed, without changing torch's global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _build_network(record, words).to(device)


def _build_network(record: TaskRecord, words: WordTable, seed: int | None = None) -> TaskModel:
    """Build the untrained network, with the linear models that `record` has for a `seed`; the
    caller seeds torch."""
    bilm_source = record.bilm
    inputs = TaskInputs(
        record.settings,
        words,
        layers=bilm_source.layers if bilm_source else 0,
        dim=bilm_source.dim if bilm_source else 0,
    )
    network = KINDS[record.kind].model_class()(inputs, record.labels, record.settings)
    if (shares := record.linear.get(str(seed))) and (shares.features or shares.vectors):
        network.linear = LinearModels(
            record.settings.features,
            len(record.labels),
            rows=shares.rows,
            width=shares.width,
            static_width=shares.static_width,
            shares=ModelShares(shares.network, shares.features, shares.vectors, shares.static),
        )
    return network


def _static_vectors(model: Path, kind: str) -> Vectors | None:
    """Return the static vectors of a model; for a tagger, each with those of its two neighbours."""
    return softmax_vectors(model, window=int(kind == "tagging"))


def _write_seed(folder: Path, network: TaskModel, progress: TaskProgress) -> None:
    """Write the weights, curve and mix of a seed."""
    folder.mkdir()
    save_weights(folder / "weights.safetensors", network.state_dict())
    curve = b"\n".join(msgspec.json.encode(figures) for figures in progress.curve)
    (folder / "curve.jsonl").write_bytes(curve + b"\n")
    if network.inputs.mixes:
        mix = network.inputs.mixes[0]
        weights = mix.weights.detach().double().softmax(0).tolist()
        mix_record = {"kind": "mix", "weights": weights, "gamma": float(mix.gamma.detach())}
        write_json(folder / "mix.json", mix_record)


def _fingerprint(record: TaskRecord, words: WordTable, seed: int, origin: Sequence[str]) -> str:
    """Return a digest of everything that a seed's result depends on; it names the work folder.
    `origin` has the digest of the store and the kind of device."""
    vectors = None if words.vectors is None else hashlib.sha256(words.vectors.tobytes()).hexdigest()
    parts = [
        RESULTS_VERSION,
        record.kind,
        msgspec.to_builtins(record.settings),
        record.labels,
        record.bilm and record.bilm.digest,
        record.data,
        [words.words, vectors],
        seed,
        *origin,
    ]
    return digest(parts)[:16]


def _digest_examples(examples: Sequence[Example]) -> str:
    """Return the SHA-256 of examples, without their sources."""
    hasher = hashlib.sha256()
    for example in examples:
        hasher.update(repr(replace(example, source="")).encode("utf-8", "backslashreplace"))
    return hasher.hexdigest()
