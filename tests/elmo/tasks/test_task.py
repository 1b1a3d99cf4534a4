"""Tasks are trained the same way each time, resumed, kept whole, and refused with one line."""

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from elmo.data.arrays import Floats
from elmo.errors import BadSettings, ElmoError
from elmo.io.atomic import write_json
from elmo.io.location import Location
from elmo.io.records import read_json
from elmo.model.folder import copy_model
from elmo.store import FeatureStore
from elmo.tasks import comparison, kinds, train
from elmo.tasks import task as tasks
from elmo.tasks.comparison import evaluate_seeds, seeds_still_improving
from elmo.tasks.examples import (
    Classified,
    Document,
    Example,
    Pair,
    Predicate,
    Question,
    Span,
    Tokens,
    attention_pairs,
)
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.inputs import TaskInputs, WordTable
from elmo.tasks.kinds import task_settings
from elmo.tasks.model import TaskModel
from elmo.tasks.record import BiLMSource, best_seed, read_curve, read_task_record, record_digest
from elmo.tasks.settings import TaskSettings
from elmo.tasks.task import Task, train_task
from elmo.tasks.train import TaskProgress, _record_score, fit_task, predict_all, report_nothing
from elmo.tasks.vectors import StoredVectors, Vectors, build_sentence_store
from tests.elmo.conftest import make_store, save_tiny_model
from tests.elmo.tasks.toys import DIM, LAYERS, examples, word_vectors
from tests.files import contents, flip

KINDS = [*kinds.KINDS]
SMALL = {
    "words": "none",
    "characters": 0,
    "hidden": 24,
    "elmo_dropout": 0,
    "dropout": 0,
    "patience": 40,
    "epochs": 40,
    "batch_size": 16,
}
RECIPES: dict[str, dict[str, Any]] = {
    "tagging": {"lr": 0.01, "epochs": 8},
    "classification": {"lr": 0.005, "epochs": 12},
    "pairs": {"lr": 0.005, "epochs": 14},
    "questions": {"epochs": 14, "average": 0.5, "optimizer": "adam", "lr": 0.01},
    "roles": {"epochs": 10, "depth": 2, "optimizer": "adam", "lr": 0.01},
    "coreference": {"lr": 0.01, "epochs": 6, "batch_size": 1, "span_tokens": 2},
}


def settings_of(kind: str, **changes: Any) -> TaskSettings:
    return task_settings(kind, SMALL | RECIPES[kind] | changes)


def network(kind: str, settings: TaskSettings, train: Sequence[Example]) -> TaskModel:
    torch.manual_seed(0)
    inputs = TaskInputs(settings, WordTable(["<pad>", "<unk>"], None), layers=LAYERS, dim=DIM)
    model_class = kinds.KINDS[kind].model_class()
    return model_class(inputs, model_class.labels_of(train), settings)


def fit(
    model: TaskModel,
    train: Sequence[Any],
    settings: TaskSettings,
    work: Path,
    *,
    dev: Sequence[Any] | None = None,
    vectors: Vectors = word_vectors,
    seed: int = 0,
) -> None:
    fit_task(
        model,
        train,
        train if dev is None else dev,
        vectors=vectors,
        settings=settings,
        seed=seed,
        checkpoints_folder=work,
        report=report_nothing,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_the_gradient_reaches_every_weight(kind: str) -> None:
    """All but the word table's unused rows; and it is the slope that differences give."""
    settings = settings_of(kind, elmo_output=True, l2=0.1)
    few = examples(kind, 6)
    model = network(kind, settings, few)
    model.double().eval()
    vectors = word_vectors

    def loss() -> torch.Tensor:
        return model.loss(few, vectors) + model.inputs.l2()

    with torch.no_grad():
        for mix in model.inputs.mixes:
            mix.weights.copy_(torch.tensor([0.3, -0.2]))
    torch.autograd.backward(loss())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        flat, slope = parameter.data.view(-1), parameter.grad.view(-1)
        k = int(slope.abs().argmax())
        kept, step = flat[k].item(), 1e-6
        with torch.no_grad():
            flat[k] = kept + step
            above = loss().item()
            flat[k] = kept - step
            below = loss().item()
            flat[k] = kept
        assert slope[k].item() == pytest.approx((above - below) / (2 * step), rel=1e-3), name


@pytest.mark.parametrize("most_frequent", [0.0, 0.1])
def test_patience_begins_when_something_is_learned(most_frequent: float) -> None:
    """A model may give all examples one label for many epochs before it learns more."""
    settings = task_settings("pairs", {"lr": 1.0, "halve_after": 2})
    progress, seen = TaskProgress(lr=1.0, curve=[]), []
    scores = (most_frequent, most_frequent, 0.3, 0.3, 0.2, 0.4, 0.1, 0.1, 0.1, 0.1)
    for epoch, score in enumerate(scores, 1):
        progress.epoch = epoch
        _record_score(progress, {"accuracy": score}, settings)
        progress.curve.append({"epoch": epoch, "accuracy": score})
        seen.append((progress.best_epoch, progress.stale, progress.lr))
    begun = [(1, 0, 1), (1, 0, 1), (3, 0, 1), (3, 1, 1), (3, 2, 0.5), (6, 0, 0.5)]
    assert seen == [*begun, (6, 1, 0.5), (6, 2, 0.25), (6, 3, 0.25), (6, 4, 0.125)]
    perfect = TaskProgress(lr=1.0, epoch=2, best=1.0, best_epoch=1, curve=[{"accuracy": 1.0}])
    _record_score(perfect, {"accuracy": 1.0}, settings)
    assert (perfect.best_epoch, perfect.stale) == (1, 1)


def test_each_epoch_of_each_seed_draws_its_own_order_and_masks(tmp_path: Path) -> None:
    settings = settings_of("pairs", epochs=3, lr=1e-6, batch_size=2)
    given = examples("pairs", 12)
    model = network("pairs", settings, given)
    orders: list[list[str]] = []
    masks: list[float] = []
    loss = model.loss

    def spy(batch: Sequence[Any], vectors: Vectors | None) -> torch.Tensor:
        if sum(map(len, orders)) % 12 == 0:
            orders.append([])
            masks.append(torch.rand(1).item())
        orders[-1] += [example.source for example in batch]
        return loss(batch, vectors)

    model.loss = spy  # type: ignore[method-assign]
    for seed in (0, 1):
        fit(model, given, settings, tmp_path / str(seed), seed=seed)
    assert len({tuple(order) for order in orders}) == len(set(masks)) == 6
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


def test_the_curve_has_the_rate_that_each_epoch_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def spy(optimizer: torch.optim.Adam, *args: Any, **options: Any) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return step(optimizer, *args, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    changes = {"elmo": "none", "halve_after": 1, "lr": 0.02, "epochs": 8, "batch_size": 40}
    folder = trained("pairs", tmp_path, None, changes=changes)
    assert len(set(rates)) > 1
    assert [figures["lr"] for figures in read_curve(folder, 0)] == rates


def test_the_best_seed_on_dev_is_loaded(tmp_path: Path) -> None:
    folder = trained("tagging", tmp_path, None, changes={"elmo": "none", "epochs": 1}, seeds=[0, 1])
    for best in (0, 1):
        scores = {
            str(seed): {"accuracy": 0.9 - (seed == best), "epoch": 9, "f1": 0.2 + (seed == best)}
            for seed in (0, 1)
        }
        sealed(folder, {"scores": scores})
        weights = Task.load(folder).model.transitions_KK  # type: ignore[attr-defined]
        chosen = Task.load(folder, seed=best).model.transitions_KK  # type: ignore[attr-defined]
        assert torch.equal(weights, chosen)
    record = read_task_record(folder)
    for right, accuracies in ((1, [0.2, 0.7]), (0, [0.7, 0.2]), (0, [0.7, 0.7])):
        plain = {str(seed): {"accuracy": value} for seed, value in enumerate(accuracies)}
        assert best_seed(msgspec.structs.replace(record, scores=plain)) == right


def test_a_folder_that_cannot_be_written_is_found_before_training(tmp_path: Path) -> None:
    epochs: list[str] = []
    with pytest.raises(ElmoError, match="/proc"):  # nobody can write there, root neither
        few, heard = labelled("pairs", 4), lambda name, _: epochs.append(name)
        taught("pairs", few, few, Path("/proc"), work=tmp_path / "runs", report=heard)
    assert epochs == []


def test_what_no_model_can_read_stays_in_the_denominator(tmp_path: Path) -> None:
    """SQuAD's script gives a question without a prediction 0; srl-eval.pl counts nested gold."""
    asked = [e for e in examples("questions", 3) if isinstance(e, Question)]
    mute = replace(asked[0], question=())
    folder = trained("questions", tmp_path, None, changes={"elmo": "none", "epochs": 1})
    task = Task.load(folder)
    guessed = [guess for _, guess in task.predict([mute, *asked, mute])]
    assert guessed[0] == guessed[-1] == (0, 0)
    assert task.describe(mute, (0, 0)) == {"id": "0", "answer": "", "answer_start": -1}
    both, alone = (task.evaluate(ExampleSet(e, {})) for e in ([mute, *asked, mute], asked))
    assert both["f1"] == pytest.approx(alone["f1"] * 3 / 5)
    assert task.evaluate(ExampleSet([mute], {})) == {"f1": 0.0, "exact_match": 0.0}


def test_nested_arguments_are_scored_and_not_learned(tmp_path: Path) -> None:
    data = labelled("roles", 8)
    first = data.examples[0]
    assert isinstance(first, Predicate)
    spans = (Span(0, 1, "A0"), Span(2, 3, "A2"), Span(2, 4, "A1"))
    nested = replace(first, tags=None, nested=spans)
    both = ExampleSet([nested, *data.examples], {}, "bio")
    task = Task.load(taught("roles", both, both, tmp_path, changes={"depth": 1}))
    found = ["B-A0", "O", "B-A1", "I-A1", *["O"] * 4]
    assert task.model.tally([nested], [found]).scores() == pytest.approx(
        {"f1": 0.8, "precision": 1.0, "recall": 2 / 3}
    )


@pytest.mark.parametrize("kind", ["classification", "pairs", "questions"])
def test_a_text_too_long_for_attention_is_refused_before_any_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory grows with the square of a text: 10,000 tokens took 3.6 GB, 40,000 were killed."""
    folder = trained(kind, tmp_path, None, changes={"elmo": "none", "epochs": 1})
    long = replace(examples(kind, 1)[0], source="x.jsonl:7")
    words = ("so",) * 100_000
    match long:
        case Classified() | Question():
            long = replace(long, tokens=words)
        case Pair():
            long = replace(long, premise=words, hypothesis=words)
    message = "x.jsonl:7: has 100,000 tokens, more than 8,192; .*cut it"
    monkeypatch.setattr(TaskInputs, "forward", None)
    with pytest.raises(ElmoError, match=message):
        list(Task.load(folder).predict([long]))
    few = labelled(kind, 1).examples
    for learned, dev in (([long], few), (few, [long])):
        with pytest.raises(ElmoError, match=message):
            taught(kind, ExampleSet(learned, {}), ExampleSet(dev, {}), tmp_path / "other")


@pytest.mark.parametrize("kind", ["classification", "pairs", "questions"])
def test_a_batch_of_long_texts_is_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step and no prediction attends over more than its share of memory."""
    monkeypatch.setattr(train, "MAX_ATTENTION_PAIRS", 300)
    few = examples(kind, 40)
    model = network(kind, settings_of(kind), few)
    sizes: list[int] = []
    predict = model.predict

    def spy(batch: Sequence[Any], vectors: Vectors | None) -> list[Any]:
        sizes.append(len(batch) * max(attention_pairs(example) for example in batch))
        return predict(batch, vectors)

    whole = predict_all(model, few, word_vectors, 1)
    monkeypatch.setattr(model, "predict", spy)
    assert predict_all(model, few, word_vectors, 40) == whole
    cut = train.random_batches(few, 40, np.random.default_rng(0))
    sizes += [len(batch) * max(attention_pairs(example) for example in batch) for batch in cut]
    assert max(sizes) <= 300 and sum(map(len, cut)) == 40
    assert sorted(e.source for batch in cut for e in batch) == sorted(e.source for e in few)


def test_nothing_to_learn_from_is_refused(tmp_path: Path) -> None:
    """No answer is made up: a span of the first token would be learned."""
    unlabelled = [replace(e, answer=None) for e in examples("questions", 4)]  # type: ignore[call-arg]
    with pytest.raises(ElmoError, match="toy:0: .*to learn from"):
        taught("questions", ExampleSet(unlabelled, {}), labelled("questions", 4), tmp_path)


def labelled(kind: str, count: int, seed: int = 0) -> ExampleSet:
    scheme = {"tagging": "bioes", "roles": "bio"}.get(kind, "plain")
    return ExampleSet(examples(kind, count, seed), {"examples": count}, scheme)


def taught(
    kind: str,
    learned: ExampleSet,
    dev: ExampleSet,
    folder: Path,
    model: Path | str | None = None,
    *,
    changes: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Train a small task in `folder`, for one epoch without ELMo unless `changes` say more."""
    settings = task_settings(kind, {"elmo": "none", "epochs": 1, "hidden": 8} | (changes or {}))
    options = {"out": folder / "task", "work": folder / "runs"} | options
    train_task(kind, learned, dev, settings=settings, model=model, **options)
    return folder / "task"


def trained(kind: str, folder: Path, model: Path | None, **options: Any) -> Path:
    changes = {"elmo": "frozen", "epochs": 3, "words": "learned", "characters": 8}
    changes |= options.pop("changes", {})
    learned = labelled(kind, options.pop("count", 40))
    dev = labelled(kind, 12, 1)
    return taught(kind, learned, dev, folder, model, changes=changes, **options)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_with_two_threads(tmp_path: Path) -> None:
    """Batches large enough that torch divides the sums of gradients between threads."""
    torch.set_num_threads(2)
    changes = {"hidden": 64, "characters": 64, "batch_size": 64, "epochs": 2, "elmo": "none"}
    found = [
        contents(trained("tagging", tmp_path / name, None, changes=changes, count=400))
        for name in "abc"
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bytes(
    kind: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    whole = contents(trained(kind, tmp_path / "whole", tiny_model_folder, seeds=[0, 1]))
    heard = 0

    def stop(_: str, figures: dict[str, float]) -> None:
        nonlocal heard
        heard += "epoch" in figures
        if heard == 5:  # of the second seed, in its second epoch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(kind, tmp_path / "cut", tiny_model_folder, seeds=[0, 1], report=stop)
    assert not (tmp_path / "cut" / "task").exists()
    epochs = []
    resumed = trained(
        kind,
        tmp_path / "cut",
        tiny_model_folder,
        seeds=[0, 1],
        report=lambda name, figures: epochs.append(figures.get("epoch")),
    )
    assert contents(resumed) == whole
    assert epochs == [None, 1, 2, 3] * 2


def test_a_seed_is_resumed_with_the_same_inputs_alone(tmp_path: Path) -> None:
    record = read_task_record(trained("tagging", tmp_path, None, changes={"elmo": "none"}, count=8))
    words, numbers = ["a", "b"], np.ones((2, 2), np.float32)
    changes: list[dict[str, Any]] = [
        {"kind": "pairs"},
        {"labels": ["x"]},
        {"settings": settings_of("tagging", lr=0.7)},
        {"bilm": BiLMSource("0" * 64, 1, 1)},
        {"data": record.data | {"dev": "0" * 64}},
        {},
    ]
    given: list[tuple[Any, ...]] = [
        *((msgspec.structs.replace(record, **c), WordTable(words, numbers)) for c in changes),
        *((record, WordTable(*table)) for table in ((words, None), (words[:1], numbers))),
    ]
    given = [(*one, 0, ["store", "cpu"]) for one in given]
    given += [(*given[5][:2], seed, source) for seed, source in ((1, given[5][3]), (0, ["store"]))]
    assert len({tasks._fingerprint(*one) for one in given}) == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("elmo", ["frozen", "none"])
@pytest.mark.slow
def test_a_loaded_task_scores_what_it_scored(
    kind: str, elmo: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    model = None if elmo == "none" else tiny_model_folder
    folder = trained(kind, tmp_path, model, changes={"elmo": elmo, "epochs": 1})
    loaded = Task.load(folder)
    scores = loaded.evaluate(labelled(kind, 12, 1))
    for name, score in scores.items():
        assert score == pytest.approx(loaded.record.scores["0"][name], abs=1e-6), name


@pytest.mark.parametrize("killed_at", [1, 12])
@pytest.mark.slow
def test_a_kill_inside_an_epoch_changes_nothing(killed_at: int, tmp_path: Path) -> None:
    settings = settings_of("questions", epochs=3, dropout=0.3)
    train, dev = examples("questions", 40), examples("questions", 8, 1)

    def run(work: Path, vectors: Vectors) -> dict[str, torch.Tensor]:
        model = network("questions", settings, train)
        fit(model, train, settings, work, dev=dev, vectors=vectors)
        return model.state_dict()

    calls = 0

    def killed(sentences: Sequence[Tokens]) -> list[Floats]:
        nonlocal calls
        calls += 1
        if calls == killed_at:
            raise KeyboardInterrupt
        return word_vectors(sentences)

    whole = run(tmp_path / "whole", word_vectors)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", killed)
    again = run(tmp_path / "killed", word_vectors)
    for name, value in whole.items():
        assert torch.equal(again[name], value), name


def test_layers_and_the_learned_mix(tmp_path: Path, tiny_model_folder: Path) -> None:
    folder = trained("tagging", tmp_path, tiny_model_folder, changes={"layers": (0, 2)})
    weights = read_json(folder / "seed-0" / "mix.json")["weights"]
    assert len(weights) == 2 and sum(weights) == pytest.approx(1)
    assert Task.load(folder).record.bilm == BiLMSource(tasks.model_digest(tiny_model_folder), 2, 8)


def test_each_model_has_a_store_of_the_sentences(tmp_path: Path, tiny_model_folder: Path) -> None:
    save_tiny_model(tmp_path / "model", seed=5)
    models = (tiny_model_folder, tmp_path / "model")
    for number, model in enumerate(models, 1):
        build_sentence_store([("a",)], model=model, work=tmp_path / "work", layers=None)
        assert len(list((tmp_path / "work").iterdir())) == number


def test_a_store_of_other_sentences_than_were_said_is_not_read(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    store = FeatureStore(make_store(tmp_path, [["a"], ["gift"]], tiny_model_folder))
    assert len(StoredVectors(store, sentences=[("a",), ("gift",)])([("gift",)])) == 1
    with pytest.raises(ElmoError, match="does not hold 'has'"):
        StoredVectors(store, sentences=[("a",), ("has",)])([("has",)])


def test_a_store_is_used_where_it_holds_the_sentences(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    own = trained("pairs", tmp_path, tiny_model_folder)
    all_examples = [*labelled("pairs", 12, 1).examples, *labelled("pairs", 40).examples]
    sentences = [sentence for e in all_examples for sentence in e.sentences]
    for name, kept in (("all", sentences), ("few", sentences[:-1][::2])):
        make_store(tmp_path / name, kept, tiny_model_folder)
    stored = trained("pairs", tmp_path / "s", tiny_model_folder, store=tmp_path / "all" / "store")
    assert contents(stored) == contents(own)
    with pytest.raises(ElmoError, match="does not hold"):
        trained("pairs", tmp_path / "t", tiny_model_folder, store=tmp_path / "few" / "store")


@pytest.mark.parametrize("name", ["seed-0/weights.safetensors", "seed-0/mix.json", "words.json"])
def test_one_altered_byte_of_a_trained_task_is_refused(
    tmp_path: Path, tiny_model_folder: Path, name: str
) -> None:
    folder = trained("tagging", tmp_path, tiny_model_folder, changes={"epochs": 1})
    flip(folder / name)
    with pytest.raises(ElmoError, match=f"{name}: truncated or altered"):
        Task.load(folder)


def sealed(folder: Path, changes: dict[str, Any]) -> None:
    """Change the record, and its digest with it."""
    record = read_json(folder / "task.json") | changes
    write_json(folder / "task.json", record | {"digest": record_digest(record)})


def test_an_edited_record_of_a_task_is_refused(tmp_path: Path, tiny_model_folder: Path) -> None:
    folder = trained("tagging", tmp_path, tiny_model_folder, changes={"epochs": 1, "l2": 0})
    record = read_json(folder / "task.json")
    assert Task.load(folder).record.digest == record["digest"] == record_digest(record)
    for changes in (
        {"labels": record["labels"][::-1]},
        {"labels": ["O"] * len(record["labels"])},
        {"scores": {"0": {"f1": 1.0}}},
        {"digest": "0" * 64},
    ):
        write_json(folder / "task.json", record | changes)
        with pytest.raises(ElmoError, match=r"task.json: was altered \(its digest is"):
            Task.load(folder)
    write_json(folder / "task.json", record | {"format": 1})
    with pytest.raises(ElmoError, match="has format 1, but this version reads 3; train the"):
        Task.load(folder)


def test_what_does_not_fit_is_refused(tmp_path: Path, tiny_model_folder: Path) -> None:
    folder = trained("tagging", tmp_path, tiny_model_folder, changes={"epochs": 1})
    with pytest.raises(ElmoError, match="has no seed 7; it has"):
        Task.load(folder, seed=7)
    with pytest.raises(ElmoError, match=r"mark no spans, .* \(bioes\); .*--scheme bioes"):
        Task.load(folder).evaluate(ExampleSet(examples("tagging", 2), {}, "plain"))
    with pytest.raises(ElmoError, match="no such file"):
        Task.load(tmp_path)
    settings = read_json(folder / "task.json")["settings"]
    sealed(folder, {"settings": settings | {"hidden": 9}})
    with pytest.raises(ElmoError, match="does not fit task.json"):
        Task.load(folder)
    other = read_json(folder / "task.json")["bilm"] | {"digest": "0" * 64}
    sealed(folder, {"settings": settings, "bilm": other})
    with pytest.raises(ElmoError, match="is not the model that the task was trained with"):
        Task.load(folder)
    with pytest.raises(ElmoError, match="pass either a model or"):
        trained("tagging", tmp_path, None)
    with pytest.raises(ElmoError, match="layers must be among 0 to [0-9]+, found 9"):
        trained("tagging", tmp_path / "new", tiny_model_folder, changes={"layers": [0, 9]})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden": 3}, "no setting 'hiden'; did you mean 'hidden'"),
        ({"depth": 100_000}, "depth must be a whole number of at least 1 and at most 64"),
        ({"hidden": 1 << 20}, "hidden must be a whole number of at least 1 and at most 32,768"),
        ({"characters": 1 << 20}, "characters must be a whole number of at least 0 and at most"),
        ({"word_dim": 1 << 20}, "word_dim must be a whole number"),
        ({"dropout": "1.0"}, "dropout must be a number of at least 0 and below 1, found '1.0'"),
        ({"lr": "inf"}, "^lr must be a number of at least 0 and at most 1e"),
        ({"words": "glove"}, "words must be one of learned, file, none, found 'glove'"),
        ({"elmo": "none", "words": "none", "characters": 0}, "leave no input"),
        ({"word_file": "x"}, "or neither"),
        ({"class_weights": "balanced"}, "class_weights: not available for tagging"),
        ({"kind": "roles", "features": 64}, "features: not available for roles"),
        ({"elmo_input": False}, "set one to true"),
        (
            {"elmo_input": False, "elmo_output": True, "words": "none", "characters": 0},
            "needs words or characters",
        ),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        task_settings(changes.pop("kind", "tagging"), changes)


@pytest.mark.parametrize("where", ["seed-0/notes.txt", "model/notes.txt", "notes.txt"])
def test_a_file_of_ones_own_in_a_tasks_folder_is_not_lost(
    where: str, tmp_path: Path, tiny_model_folder: Path
) -> None:
    out = trained("tagging", tmp_path, tiny_model_folder, count=8, changes={"epochs": 1})
    (out / where).write_text("mine")
    with pytest.raises(ElmoError, match=f"contains {where}, which"):
        trained("tagging", tmp_path, tiny_model_folder, count=8, changes={"epochs": 1})
    assert (out / where).read_text() == "mine"
    (out / where).unlink()
    trained("tagging", tmp_path, tiny_model_folder, count=8, changes={"epochs": 1})


def test_a_model_may_be_one_that_is_installed_or_lies_at_a_url(
    tmp_path: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "a_model"
    shutil.copytree(tiny_model_folder, package)
    (package / "__init__.py").write_text('"""A model."""\n')
    about = tmp_path / "site" / "a_model-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a_model\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[elmo.models]\nnamed = a_model\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    url = "memory://a-model"
    copy_model(tiny_model_folder, Location(url))
    tokens = ExampleSet(examples("tagging", 4), {}, "plain")
    changes = {"elmo": "frozen", "word_dim": 4, "characters": 0}
    for model in ("named", url):
        folder = tmp_path / model.replace("/", "-")
        out = taught("tagging", tokens, tokens, folder, model, changes=changes)
        assert Task.load(out).record.bilm is not None
        files = {path.name for path in tiny_model_folder.iterdir()}
        assert {path.name for path in (out / "model").iterdir()} == files


def test_a_pickled_task_predicts_the_same(tmp_path: Path, tiny_model_folder: Path) -> None:
    changes = {"epochs": 1}
    task = Task.load(trained("tagging", tmp_path, tiny_model_folder, count=8, changes=changes))
    for _ in range(2):  # before and after its first use
        pickled = pickle.loads(pickle.dumps(task))
        assert pickled([["ann", "sees"]]) == task([["ann", "sees"]])


def test_examples_that_share_a_text_are_one_group(tmp_path: Path) -> None:
    out = trained("pairs", tmp_path, None, changes={"elmo": "none", "epochs": 1}, count=8)
    pairs = [replace(one, hypothesis=("the", k)) for one in examples("pairs", 3, 2) for k in "ab"]
    (tally,), _ = evaluate_seeds(out, ExampleSet(list(pairs), {}))
    assert tally.groups == [0, 0, 1, 1, 2, 2]


def test_a_question_without_words_does_not_end_training(
    tmp_path: Path, tiny_model_folder: Path
) -> None:
    dev = labelled("questions", 6, 1)
    dev.examples[2] = replace(dev.examples[2], question=())  # type: ignore[call-arg]
    changes = {"elmo": "frozen", "epochs": 2}
    data = labelled("questions", 12), dev
    out = taught("questions", *data, tmp_path, tiny_model_folder, changes=changes)
    assert len(read_curve(out, 0)) == 2
    assert Task.load(out).evaluate(dev)["exact_match"] <= 5 / 6


def test_a_task_that_asks_for_more_memory_than_it_has_weights_is_refused(tmp_path: Path) -> None:
    """The network of the edited record would take hundreds of gigabytes."""
    for kind in KINDS:
        out = trained(kind, tmp_path / kind, None, changes={"elmo": "none", "epochs": 1}, count=8)
        record = read_json(out / "task.json")
        record["settings"]["hidden"] = 1 << 15
        record["settings"]["depth"] = 64
        record["digest"] = record_digest(record)
        write_json(out / "task.json", record)
        with pytest.raises(ElmoError, match="does not fit task.json"):
            Task.load(out)


def test_pairs_drop_elmo_at_the_output_too() -> None:
    settings = settings_of("pairs", dropout=0.999, elmo_output=True)
    pairs = examples("pairs", 4)
    model: Any = network("pairs", settings, pairs)
    torch.manual_seed(0)
    h_BTD, _ = model._encode([pair.premise for pair in pairs], word_vectors)  # type: ignore[union-attr]
    assert (h_BTD[..., -DIM:] == 0).float().mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_tokens_is_refused(kind: str, tmp_path: Path) -> None:
    """Readers drop such texts; examples that were made by hand may have them."""
    out = trained(kind, tmp_path, None, changes={"elmo": "none", "epochs": 1}, count=8)
    task = Task.load(out)
    empty: Any = replace(examples(kind, 1)[0], source="x:1")
    empties: list[Any]
    match empty:
        case Pair():
            empties = [replace(empty, premise=()), replace(empty, hypothesis=())]
        case Document():
            empties = [replace(empty, tokens_of=()), replace(empty, tokens_of=(("a",), ()))]
        case Question():
            assert list(task.predict([replace(empty, tokens=())]))[0][1] == (0, 0)
            return
        case _:
            empties = [replace(empty, tokens=())]
    for example in empties:
        with pytest.raises(ElmoError, match="^x:1: has a text without tokens"):
            list(task.predict([example]))
        with pytest.raises(ElmoError, match="^x:1: has a text without tokens"):
            dev = replace(labelled(kind, 8), examples=[example])
            taught(kind, labelled(kind, 8), dev, tmp_path / "other")


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_training_that_was_still_improving_is_known(tmp_path: Path, epochs: int) -> None:
    """Where the rate is 0 the first epoch is the best; alone, it is the last as well."""
    changes = {"epochs": epochs, "lr": 0.0}
    out = taught("classification", *[labelled("classification", 9)] * 2, tmp_path, changes=changes)
    assert seeds_still_improving(out) == ([0] if epochs == 1 else [])


def test_the_best_score_so_far_falls_in_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = trained("pairs", tmp_path, None, changes={"elmo": "none", "epochs": 1}, count=8)
    curve = [
        {"epoch": k, "loss": 0.9, "accuracy": score} for k, score in enumerate((0.3, 0.5, 0.4))
    ]
    monkeypatch.setattr(comparison, "read_curve", lambda *_: curve)
    assert comparison.best_by_epoch(out) == [[0.3, 0.5, 0.5]]
