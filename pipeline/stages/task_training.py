"""Reads labelled files and trains tasks, for the stage `tasks`, `elmo task` and research."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError, NotFound
from elmo.io.records import digest, sha256
from elmo.store import model_digest
from elmo.tasks.settings import TaskSettings

from ..terminal.progress import log_detail, say

if TYPE_CHECKING:
    from elmo.tasks.formats.fields import ExampleSet

    from ..tracking.runs import Run


def source_digest(name: str, path: Path) -> str:
    """Return the digest of a file or a folder of files; of a model folder if `name` is "model"."""
    if name == "model":
        return model_digest(path)
    if path.is_dir():
        from elmo.tasks.example_files import list_files

        files = list_files(path)
        return digest([[file.relative_to(path).as_posix(), sha256(file)] for file in files])
    if not path.is_file():
        raise NotFound(f"{path}: no such file; check the name")
    return sha256(path)


def parse_pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts into a dict; `option` names their source in errors."""
    pairs = {}
    for text in texts:
        name, _, value = map(str.strip, text.partition("="))
        if not name or not value or name in pairs:
            raise ElmoError(f"{option} must be NAME=VALUE, found {text!r}; give each name once")
        pairs[name] = value
    return pairs


def parse_columns(text: str | None) -> dict[str, str]:
    """Parse the columns of fields, such as word=2,tag=4; return them by field."""
    return parse_pairs("columns", text.split(",") if text else [])


def read_labelled_files(
    kind: str,
    sources: Mapping[str, Path],
    *,
    format: str,
    columns: str,
    scheme: str,
    tokenizer: Any,
) -> dict[str, "ExampleSet"]:
    """Return the labelled examples of several files, by the names that `sources` gives them.

    The names are "train", "dev" and "test". `format`, `scheme` and `columns` are as on the command
    line; if empty, they are detected or the defaults of the format. `tokenizer`, a model's
    `Tokenization`, splits raw text.
    """
    from elmo.tasks.example_files import read_examples

    return {
        split: read_examples(
            kind,
            path,
            format=format or None,
            columns=parse_columns(columns),
            scheme=scheme or None,
            tokenizer=tokenizer,
        )
        for split, path in sources.items()
    }


def say_training_remarks(folder: Path, *, name: str = "") -> None:
    """Print which seeds of the trained task in `folder` were still improving at the last epoch and,
    if there are linear models, the dev score with and without them. Lines begin with `name`
    (default: the folder)."""
    from elmo.tasks.comparison import seeds_still_improving
    from elmo.tasks.features import ModelShares
    from elmo.tasks.metrics import score_order
    from elmo.tasks.record import read_task_record

    record, name = read_task_record(folder), name or str(folder)
    if seeds := seeds_still_improving(folder):
        seed_names = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        epochs = record.settings.epochs
        say(f"{name}: {seed_names}: still improving at the last epoch ({epochs}); raise epochs")
    if not record.linear:
        return
    score_rows = (record.scores[seed] for seed in record.linear)
    score = fmean(scores[min(scores, key=score_order)] for scores in score_rows)
    network_score = fmean(shares.network_score for shares in record.linear.values())
    chosen_models = [
        "+".join(model for model in ModelShares._fields if getattr(shares, model))
        for shares in record.linear.values()
    ]
    say(
        f"{name}: {network_score:.4f} on dev by the network alone, {score:.4f} by "
        f"{', '.join(dict.fromkeys(chosen_models))}"
    )


def say_remark(example_set: "ExampleSet", *, path: Path) -> None:
    """Print the remark about the file `path` in its `example_set`, if there is one."""
    if example_set.remark:
        say(f"{path}: {example_set.remark}")


def warn_unknown_labels(
    kind: str,
    example_set: "ExampleSet",
    *,
    path: Path,
    seen_labels: Sequence[str] = (),
    train: "ExampleSet | None" = None,
) -> None:
    """Warn about labels in the file `path` that were not trained and can't be predicted.

    `example_set` has the file's examples, for a task of this `kind`. Pass either `train`, the
    training examples, or `seen_labels`, those of a trained task.
    """
    from elmo.tasks.task import unknown_labels

    scheme = example_set.scheme
    if train is not None:
        seen_labels = unknown_labels(kind, (), train, scheme="plain")
    if labels := unknown_labels(kind, seen_labels, example_set, scheme=scheme):
        names = ", ".join(labels[:8]) + (", …" if len(labels) > 8 else "")
        count = len(labels)
        say(f"{path}: {count} of its labels are not in the training file: {names}")


def learning_curve_parts(example_set: "ExampleSet") -> list["ExampleSet"]:
    """Return two sets: half of the examples, drawn at random, and half of those."""
    if (count := len(example_set.examples)) < 40:
        raise ElmoError(f"--curve: needs at least 40 examples to train on, found {count}")
    examples = random.Random(0).sample(example_set.examples, count // 2)
    return [replace(example_set, examples=examples[:size]) for size in (count // 2, count // 4)]


def train_variant(
    out: Path,
    data: Mapping[str, "ExampleSet"],
    kind: str,
    settings: TaskSettings,
    *,
    model: Path,
    **options: Any,
) -> None:
    """Train a task with `train_task` and write it to `out`; `options` are further arguments.

    `data` has the examples "train" and "dev"; `settings` say whether ELMo is used, with the vectors
    of `model`. Nothing is done if `out` exists.
    """
    from elmo.model.config import read_config
    from elmo.tasks.task import train_task

    if not out.exists():
        options |= {"settings": settings, "tokenizer": read_config(model).tokenizer}
        options |= {"model": None if settings.elmo == "none" else model}
        train_task(kind, data["train"], data["dev"], out=out, **options)


class TrainProgress:
    """The `report` callback of a task's training. It prints a line per epoch; in a stage, only with
    `elmo --verbose`.

    The line begins with `name`. The figures of each seed go to `mlflow_run`, if given.
    `show_progress(seed, epoch, score)` updates the progress bar.
    """

    def __init__(
        self,
        mlflow_run: "Run | None" = None,
        *,
        name: str = "",
        show_progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self._name, self._seed, self._best_score = name, 0, -1.0
        self._run, self._show_progress = mlflow_run, show_progress

    def __call__(self, event: str, figures: dict[str, float]) -> None:
        """Report a seed or an epoch."""
        if event == "seed":
            self._seed, self._best_score = int(figures["seed"]), -1.0
            return
        if self._run is not None:
            self._run.log_metrics(name_by_seed(figures, self._seed), step=int(figures["epoch"]))
        from elmo.tasks.comparison import NON_SCORES

        scores = {name: value for name, value in figures.items() if name not in NON_SCORES}
        metric, score = next(iter(scores.items()))
        if self._show_progress is not None:
            self._show_progress(self._seed, int(figures["epoch"]), f"{metric} {score:.3f}")
        remark = ", best so far" if score > self._best_score else ""
        self._best_score = max(self._best_score, score)
        prefix = f"{self._name}seed {self._seed} epoch {int(figures['epoch'])}"
        show_line = say if self._run is None else log_detail
        show_line(f"{prefix}: loss {figures['loss']:.4g}, {format_scores(scores)}{remark}")


def name_by_seed(figures: Mapping[str, float], seed: int) -> dict[str, float]:
    """Return the figures of a seed under names that MLflow groups into one chart per figure."""
    return {f"{name}/seed-{seed}": value for name, value in figures.items()}


def format_scores(figures: Mapping[str, float]) -> str:
    """Return scores as text, such as `f1 0.7012, accuracy 0.9000`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
