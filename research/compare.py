"""Train a task in several ways, all else equal (Tables 1 to 3, Figures 1 and 2 of the paper)."""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.locks import work_folder_lock
from elmo.io.records import digest, read_json, read_record
from elmo.model.config import read_config
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION, comparison
from elmo.tasks.kinds import task_settings
from elmo.tasks.metrics import Tally
from elmo.tasks.settings import TaskSettings
from pipeline.stages import task_training
from pipeline.stages.task_training import source_digest
from pipeline.terminal.progress import say
from research.finding import Finding, FindingKind, Row, command_line, mean_row

if TYPE_CHECKING:
    from elmo.tasks.formats.fields import ExampleSet

Comparison = Literal["elmo", "layers", "positions", "context"]
WITHOUT_ELMO: dict[str, Any] = {"elmo": "none"}
# The ways that each comparison trains: a name, and the changed settings.
WAYS: dict[Comparison, dict[str, dict[str, Any]]] = {
    "elmo": {"without ELMo": WITHOUT_ELMO, "with ELMo": {}},
    "layers": {
        "without ELMo": WITHOUT_ELMO,
        "last layer": {"layers": "last"},
        "average": {"mix": "average"},
        "learned mix, λ = 1": {"l2": 1.0},
        "learned mix, λ = 0.001": {"l2": 0.001},
    },
    "positions": {
        "input": {"elmo_input": True, "elmo_output": False},
        "input and output": {"elmo_input": True, "elmo_output": True},
        "output": {"elmo_input": False, "elmo_output": True},
    },
    "context": {
        "without ELMo": WITHOUT_ELMO,
        "layer 0, no context": {"layers": 0},
        "all layers": {},
    },
}


@dataclass(frozen=True)
class ComparedTask:
    """The task of a comparison: its kind, files, model, settings and number of seeds per way."""

    kind: str
    sources: Mapping[str, Path]
    model: Path
    settings: Mapping[str, Any]
    seeds: int
    format: str = ""
    columns: str = ""
    scheme: str = ""
    device: str = "cpu"


def compare_ways(task: ComparedTask, comparison: Comparison, *, work: Path) -> Finding:
    """Train a task in each way of a comparison, with all seeds; return the test scores."""
    _check_settings(task, WAYS[comparison])
    data = _read_data(task)
    ways = {
        name: _train_way(name, task, data, _make_settings(task, changes), work=work)
        for name, changes in WAYS[comparison].items()
    }
    _add_gains(ways.get("without ELMo"), list(ways.values()))
    return _make_finding(task, comparison, data, list(ways.values()))


def compare_models(task: ComparedTask, other_models: Sequence[Path], *, work: Path) -> Finding:
    """Train a task without ELMo and with each of several models; return the test scores.

    All read the sentences as `task.model` tokenizes them, so all must have the same tokenizer.
    """
    _check_settings(task, WAYS["elmo"])
    folders = [task.model, *other_models]
    if repeated := {path for path in folders if folders.count(path) > 1}:
        raise ElmoError(f"--other {min(repeated)}: named twice; pass each model once")
    _check_tokenizers(folders)
    data = _read_data(task)
    ways = [_train_way("without ELMo", task, data, _make_settings(task, WITHOUT_ELMO), work=work)]
    for path in folders:
        model_task = replace(task, model=path)
        name = f"with ELMo, {path.as_posix()}"
        settings = _make_settings(model_task, {})
        ways.append(_train_way(name, model_task, data, settings, work=work))
    _add_gains(ways[0], ways)
    finding = _make_finding(task, "models", data, ways)
    finding.data |= {f"other {path.as_posix()}": model_digest(path) for path in other_models}
    return finding


def compare_label_shares(task: ComparedTask, shares: Sequence[float], *, work: Path) -> Finding:
    """Train a task on increasing shares of the training examples, with and without ELMo.

    A share contains every smaller share. All seeds read the same examples.
    """
    _check_settings(task, WAYS["elmo"])
    data = _read_data(task)
    examples = data["train"].examples
    order = np.random.default_rng(0).permutation(len(examples))
    ways = []
    for share in sorted(shares):
        count = max(1, round(share * len(examples)))
        subset = [examples[k] for k in sorted(order[:count])]
        data_part = {**data, "train": replace(data["train"], examples=subset)}
        for name, changes in WAYS["elmo"].items():
            settings = _make_settings(task, changes)
            way = _train_way(f"{name}, {share:.3g}", task, data_part, settings, work=work)
            way.row.extra |= {"share": share, "train_examples": count}
            ways.append(way)
        _add_gains(ways[-2], ways[-2:])
    return _make_finding(task, "labels", data, ways)


def epochs_to_reach(curves: Sequence[Sequence[float]], goals: Sequence[float]) -> float | None:
    """Return the mean epoch in which the runs first reach their goals.

    `curves` has the scores of each run by epoch. Returns None if a run never reaches its goal.
    """
    epochs = [
        next((k for k, score in enumerate(curve, 1) if score >= goal), None)
        for curve, goal in zip(curves, goals, strict=True)
    ]
    reached_epochs = [epoch for epoch in epochs if epoch is not None]
    return statistics.fmean(reached_epochs) if len(reached_epochs) == len(epochs) else None


@dataclass(frozen=True)
class _Way:
    """A way that was trained: its row, the best dev score so far by epoch, updates per epoch."""

    row: Row
    metric: str
    curves: list[list[float]]
    updates_per_epoch: int
    tallies: list[Tally]


def _add_gains(baseline: _Way | None, ways: Sequence[_Way]) -> None:
    """Add to each row the gain over the baseline on the test file, and the updates needed to reach
    the baseline's best dev score; both are means over seeds."""
    if baseline is None:
        return
    goals = [curve[-1] for curve in baseline.curves]
    for way in ways:
        if way is not baseline:
            gain = comparison.gain_of(way.tallies, baseline.tallies)
            way.row.extra |= {name: value for name, value in gain.items() if value is not None}
        epochs = epochs_to_reach(way.curves, goals)
        if epochs is not None:
            way.row.extra["updates_to_baseline"] = epochs * way.updates_per_epoch


def _check_settings(task: ComparedTask, ways: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a setting that the comparison varies: the names of the ways would be wrong."""
    compared_names = {name for changes in ways.values() for name in changes} - {"elmo"}
    for name, value in task.settings.items():
        if name in compared_names or (name, value) == ("elmo", "none"):
            raise ElmoError(f"--set {name}={value}: the comparison varies {name}; leave it out")


def _check_tokenizers(folders: Sequence[Path]) -> None:
    reference, *tokenizers = (read_config(path).tokenizer for path in folders)
    for path, tokenizer in zip(folders[1:], tokenizers, strict=True):
        if not tokenizer.has_same_tokens(reference):
            raise ElmoError(
                f"{path}: its text was cut by {tokenizer}, that of {folders[0]} by {reference}; "
                "compare models with the same tokenizer"
            )


def _make_settings(task: ComparedTask, changes: Mapping[str, Any]) -> TaskSettings:
    from elmo.model.folder import load_model

    values = {"features": 0, **task.settings, **changes}  # the paper's models have no features
    if values.get("layers") == "last":
        values["layers"] = load_model(task.model).bilm.shape.layers
    return task_settings(task.kind, values)


def _read_data(task: ComparedTask) -> dict[str, "ExampleSet"]:
    return task_training.read_labelled_files(
        task.kind,
        task.sources,
        format=task.format,
        columns=task.columns,
        scheme=task.scheme,
        tokenizer=read_config(task.model).tokenizer,
    )


def _train_way(
    name: str,
    task: ComparedTask,
    data: Mapping[str, "ExampleSet"],
    settings: TaskSettings,
    *,
    work: Path,
) -> _Way:
    """Train one way and score it on the test file; resume from `work` after an interruption."""
    identity = [
        task.kind,
        msgspec.to_builtins(settings),
        {split: source_digest(split, path) for split, path in task.sources.items()},
        [task.format, task.columns, task.scheme, task.seeds],
        len(data["train"].examples),
        # Without ELMo, only the model's tokenizer is used.
        repr(read_config(task.model).tokenizer)
        if settings.elmo == "none"
        else model_digest(task.model),
        RESULTS_VERSION,
    ]
    folder = work.absolute() / f"way-{digest(identity)[:16]}"
    task_folder, tallies_file = folder / "trained", folder / "tallies.json"
    with work_folder_lock(folder):
        if not tallies_file.exists():
            stopwatch = _Stopwatch(folder / "seconds.json")
            progress = task_training.TrainProgress(name=f"{name}, ")

            def report(kind: str, figures: dict[str, float]) -> None:
                progress(kind, figures)
                stopwatch.save()  # after each epoch, since the process may be killed

            task_training.train_variant(
                task_folder,
                data,
                task.kind,
                settings,
                seeds=range(task.seeds),
                model=task.model,
                work=work.absolute(),
                device=task.device,
                report=report,
            )
            tallies, _ = comparison.evaluate_seeds(
                task_folder, data["test"], device=task.device, work=work.absolute()
            )
            stopwatch.save()
            write_json(tallies_file, msgspec.to_builtins(tallies))
    tallies = read_record(tallies_file, list[Tally])
    scores = [tally.scores() for tally in tallies]
    means = comparison.mean_over_seeds(scores)
    metric = next(iter(means))
    row = mean_row(name, [score[metric] for score in scores], _layer_weights(task_folder))
    row.extra |= {
        f"test_{key}": value
        for key, value in means.items()
        if key != metric and not key.endswith("_sd")
    }
    # The time of one seed, if the seeds were trained one after another (OMP_NUM_THREADS=1).
    row.extra["minutes"] = _read_seconds(folder / "seconds.json") / 60 / task.seeds
    say(f"{name}: {metric} {row.mean:.4f}")
    updates_per_epoch = math.ceil(len(data["train"].examples) / settings.batch_size)
    return _Way(row, metric, comparison.best_by_epoch(task_folder), updates_per_epoch, tallies)


class _Stopwatch:
    """Measures the seconds that the runs of an interrupted job take in total, in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._start_time = path, time.perf_counter()
        self._earlier_seconds = _read_seconds(path) if path.exists() else 0.0

    def save(self) -> None:
        """Write the seconds of this run and the earlier ones to the file."""
        seconds = time.perf_counter() - self._start_time
        write_json(self._path, {"seconds": self._earlier_seconds + seconds})


def _read_seconds(path: Path) -> float:
    return read_record(path, dict[str, float])["seconds"]


def _layer_weights(folder: Path) -> dict[str, float]:
    """Return the learned weight of each layer where ELMo first enters, averaged over seeds."""
    from elmo.tasks.record import read_task_record

    record = read_task_record(folder)
    if record.bilm is None:
        return {}
    mixes = [read_json(folder / f"seed-{seed}" / "mix.json")["weights"] for seed in record.seeds]
    layers = record.settings.layers or range(record.bilm.layers)
    return {
        f"weight_layer_{layer}": statistics.fmean(weights)
        for layer, weights in zip(layers, zip(*mixes, strict=True), strict=True)
    }


def _make_finding(
    task: ComparedTask, kind: FindingKind, data: Mapping[str, "ExampleSet"], ways: Sequence[_Way]
) -> Finding:
    from elmo.tasks.examples import token_count

    return Finding(
        format=1,
        kind=kind,
        task=task.kind,
        metric=ways[0].metric,
        command=command_line(),
        model=model_digest(task.model),
        data={split: source_digest(split, path) for split, path in task.sources.items()},
        examples={
            **{split: len(example_set.examples) for split, example_set in data.items()},
            "epoch_tokens": sum(map(token_count, data["train"].examples)),
        },
        seeds=list(range(task.seeds)),
        settings=dict(task.settings),
        rows=[way.row for way in ways],
    )
