"""tasks: a downstream task on labelled files, trained with ELMo and without, scored on a test file.

The functions that `elmo task` and `python -m research` share with this stage are here too.
"""

import csv
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError, NotFound
from elmo.io.atomic import check_writable, new_file
from elmo.io.folders import link_folder, local_folder, new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.io.outputs import check_folder, check_output
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.kinds import task_settings
from elmo.tasks.settings import TaskSettings

from ..report.phrases import ARMS, SIMPLE, interval_text, score_order
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..settings.params import Params, ProjectTask
from ..terminal.progress import Progress, log_detail, say
from ..tracking.task_runs import TaskRuns, source_digest
from .stage import WORK, Argument, Numbers, Stage

if TYPE_CHECKING:
    from elmo.tasks.formats.fields import ExampleSet
    from elmo.tasks.metrics import Tally
    from elmo.tasks.train import ReportEpoch

NOT_SCORES = ("epoch", "loss", "lr")  # what an epoch has besides its scores
MAIN_SCORES = ("f1", "accuracy")  # one of them is the first score of each task


def _run(params: Params, name: str, model: Location, cluster: Cluster, **given: Any) -> Numbers:
    if name not in params.tasks:
        names = ", ".join(params.tasks) or "none"
        raise NotFound(f"tasks.{name}: no such task in the params; there are: {names}")
    device = "cuda" if cluster.gpu else "cpu"
    with local_folder(model) as local_model:
        return run(name, local_model, params=params.tasks[name], device=device, **given)


STAGE = Stage(
    name="tasks",
    version=RESULTS_VERSION + 1,  # with what it adds to the trained tasks: simple baselines
    help="Train the task NAME of the params on MODEL's vectors, and without them; score both.",
    inputs=(Argument("name", "word"), Argument("model")),
    outputs=(
        Argument("out", "path"),
        Argument("curve", "path", "Where the table of scores by epoch goes."),
        Argument("picture", "path", "Where its picture goes."),
    ),
    run=_run,
    summary=lambda figures, _: summary(figures),
    metrics={f"{metric}_higher_better": metric for metric in MAIN_SCORES}
    | {"gain_over_without_elmo_higher_better": "gain"},
    score=lambda figures, _: score_text(figures),
    work=replace(WORK, kind="path"),
    cluster=True,
)


def run(
    name: str,
    model: Path,
    out: Path,
    params: ProjectTask,
    *,
    curve: Path,
    picture: Path,
    work: Path,
    device: str,
) -> dict[str, Any]:
    """Train the task `name` of the params with ELMo in `out/elmo`, with the vectors of the model
    folder `model`, and without in `out/baseline`; return the scores on the test file.

    Under `elmo`, `baseline` and the names of the simple baselines are their metrics by name; `gain`
    is a number, that of ELMo over the baseline, and its intervals stand beside it. `curve` is a
    table of the best score on dev so far by epoch, averaged over the seeds; `picture` is its plot.
    An interrupted run is resumed from `work`.
    """
    from elmo.model.config import read_config
    from elmo.tasks.task import OTHER_FILE_PATTERN, check_same_tags

    from ..report import plots

    arms = _arms(params)
    written = rf"({'|'.join(ARMS)})/(task\.json|{OTHER_FILE_PATTERN})"
    ours: dict[str, Any] = {"ours": tuple(arms)[:1], "also": written}
    check_folder(Location(out), **ours)
    check_writable(out)
    check_output(curve, ours=rb"epoch(\telmo)?(\tbaseline)?\n")
    plots.check_replaceable_plot(picture)
    sources = {split: Path(getattr(params, split)) for split in ("train", "dev", "test")}
    inputs = {split: source_digest(split, path) for split, path in sources.items()}
    inputs |= {"model": model_digest(model)}
    data = read_labelled(
        params.kind,
        sources,
        format=params.format,
        columns=params.columns,
        scheme=params.scheme,
        tokenizer=read_config(model).tokenizer,
    )
    for split in ("dev", "test"):
        check_same_tags(data["train"], data[split])
        warn_unknown_labels(params.kind, data[split], path=sources[split], train=data["train"])
    kept = work.absolute() / f"{name}-{fingerprint('tasks', STAGE.version, params, inputs)}"
    read = {**sources, "model": model}
    tracked_arms = {
        arm: TaskRuns(name, params.kind, settings, read, work) for arm, settings in arms.items()
    }
    epochs = params.seeds * sum(settings.epochs for settings in arms.values())
    with work_folder_lock(kept), Progress(f"tasks {name}", epochs, unit="epochs") as bar:
        tallies = {
            arm: _train(kept / arm, data, tracked, params.seeds, model, device, bar)
            for arm, tracked in tracked_arms.items()
        }
        bar.reach(epochs, "simple baselines")
        tallies |= {name: [tally] for name, tally in _simple(params.kind, data, model).items()}
        with new_folder(Location(out), **ours) as new:
            for arm in arms:
                link_folder(kept / arm, new / arm)
        first, tracked = next(iter(tracked_arms.items()))
        tracked.log_model(out / first, best_seed(out / first))
        figures = _figures(tallies, data)
        shown = [key for key in (_metric(figures), "gain") if key in figures]
        with tracked.open(0) as log:
            log.log_to_parent(
                {f"tasks.{name}.{key}": figures[key] for key in shown},
                {f"tasks.{name}.seeds": params.seeds},
            )
    for tracked in tracked_arms.values():
        tracked.forget_resumable(range(params.seeds))
    _draw_curves(out, arms, curve, picture, metric=_metric(figures))
    shutil.rmtree(kept, ignore_errors=True)
    return figures


def _draw_curves(
    out: Path, arms: Iterable[str], curve: Path, picture: Path, *, metric: str
) -> None:
    """Write the curves of the arms' tasks in `out` as a table and as a picture."""
    from ..report import plots

    curves = {arm: _mean_curve(out / arm) for arm in arms}
    _write_curve(curve, curves)
    picture.parent.mkdir(parents=True, exist_ok=True)
    with new_file(picture) as new:
        plots.draw_task(new, curves, ARMS, score=f"best {metric} on dev so far")


def summary(figures: Mapping[str, Any]) -> str:
    """Return the line that the stage prints, from the `figures` of `run`: scores and gain."""
    shown = score_text(figures)
    test = f"{figures['examples']['test']:,} test examples"
    if "gain" not in figures:
        return f"{shown}; {figures['seeds']} seeds, {test}"
    seeds = ""
    if figures["gain_low"] is not None:
        interval = interval_text(figures["gain_low"], figures["gain_high"])
        seeds = f"over {figures['seeds']} seeds {interval}, "
    units = interval_text(figures["gain_test_low"], figures["gain_test_high"])
    return f"{shown}; {figures['gain']:+.3f}, 95 % interval {seeds}over {test} {units}"


def score_text(figures: Mapping[str, Any]) -> str:
    """Return the main score with ELMo, without it, and by each simple baseline, as one line.

    `figures` are those of `run`.
    """
    metric = _metric(figures)
    rows = (ARMS | SIMPLE).items()
    shown = (f"{figures[name][metric]:.3f} {words}" for name, words in rows if name in figures)
    return f"{metric} {', '.join(shown)}"


def best_by_epoch(folder: Path) -> list[list[float]]:
    """Return, for each seed of a trained task, the best main score on dev up to each epoch."""
    from elmo.tasks.task import read_curve, read_task

    curves = []
    for seed in read_task(folder).seeds:
        best, curve = -1.0, []
        for figures in read_curve(folder, seed):
            metric = min((name for name in figures if name not in NOT_SCORES), key=score_order)
            best = max(best, figures[metric])
            curve.append(best)
        curves.append(curve)
    return curves


def _mean_curve(folder: Path) -> list[float]:
    """The mean of the seeds; one that ended early keeps its best."""
    curves = best_by_epoch(folder)
    longest = max(map(len, curves))
    padded = [curve + curve[-1:] * (longest - len(curve)) for curve in curves]
    return [statistics.fmean(values) for values in zip(*padded, strict=True)]


def best_seed(folder: Path) -> int:
    """Return the seed of a trained task that has the best score on dev."""
    from elmo.tasks import task

    return task.best_seed(task.read_task(folder))


def mean_over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over the seeds, the main score first.

    `scores` has the scores of each seed, by name. Of several seeds the standard deviation of the
    main score is added, under its name and `_sd`.
    """
    names = sorted((name for name in scores[0] if name != "epoch"), key=score_order)
    figures = {name: statistics.fmean(s[name] for s in scores) for name in names}
    if len(scores) > 1:
        figures[f"{names[0]}_sd"] = statistics.stdev(s[names[0]] for s in scores)
    return figures


def parse_pairs(option: str, parts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts into a dict; `option` is where they come from, for errors."""
    pairs = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name or not value:
            raise ElmoError(f"{option} must be NAME=VALUE, found {part!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def _arms(params: ProjectTask) -> dict[str, TaskSettings]:
    """Return what is trained: with ELMo where the settings leave it in, without where asked for."""
    settings = task_settings(params.kind, dict(params.settings))
    without = task_settings(params.kind, {**params.settings, "elmo": "none"})
    if settings.elmo == "none":
        return {"baseline": without}
    return {"elmo": settings} | ({"baseline": without} if params.baseline else {})


def read_labelled(
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
    line, empty for what the files tell and the format's usual columns; `tokenizer`, a model's
    `Tokenization`, cuts those that are text.
    """
    from elmo.tasks.example_files import read_examples

    return {
        split: read_examples(
            kind,
            path,
            format=format or None,
            columns=parse_pairs("columns", columns.split(",") if columns else []),
            scheme=scheme or None,
            tokenizer=tokenizer,
        )
        for split, path in sources.items()
    }


def warn_unknown_labels(
    kind: str,
    labelled: "ExampleSet",
    *,
    path: Path,
    known: Sequence[str] = (),
    train: "ExampleSet | None" = None,
) -> None:
    """Warn of labels of the file `path` that training has not seen and that can't be predicted.

    `labelled` are the file's examples, for a task of this `kind`. Pass either `train`, the training
    examples, or `known`, the labels of a trained task.
    """
    from elmo.tasks.task import unknown_labels

    scheme = labelled.scheme
    if train is not None:
        known = unknown_labels(kind, (), train, scheme="plain")
    if lacking := unknown_labels(kind, known, labelled, scheme=scheme):
        names = ", ".join(lacking[:8]) + (", …" if len(lacking) > 8 else "")
        many = len(lacking)
        say(f"{path}: training lacks {many} of its labels, which can't be predicted: {names}")


def _train(
    out: Path,
    data: Mapping[str, "ExampleSet"],
    tracked: TaskRuns,
    seeds: int,
    model: Path,
    device: str,
    bar: Progress,
) -> list["Tally"]:
    """Train one arm, unless that is done, and count what each seed gets right on the test file."""
    before, arm = bar.done, f"{ARMS[out.name]}, "

    def show(seed: int, epoch: int, score: str) -> None:
        bar.reach(before + seed * tracked.settings.epochs + epoch, f"{arm}seed {seed}, {score}")

    with ExitStack() as stack:
        train_variant(
            out,
            data,
            tracked.kind,
            tracked.settings,
            seeds=seeds,
            model=model,
            work=out.parent.parent,
            device=device,
            report=TrainProgress(tracked.run_opener(stack), name=arm, show=show),
        )
    bar.reach(before + seeds * tracked.settings.epochs, f"{arm}on the test file")
    tallies = score_seeds(out, data["test"], work=out.parent.parent, device=device)
    for seed, tally in enumerate(tallies):
        score = tally.scores()
        with tracked.open(seed) as log:
            log.log_metrics({f"test.{name}": value for name, value in score.items()})
        log_detail(f"{arm}seed {seed}: {scores_text(score)} on test")
    return tallies


def train_variant(
    out: Path,
    data: Mapping[str, "ExampleSet"],
    kind: str,
    settings: TaskSettings,
    *,
    seeds: int,
    model: Path,
    work: Path,
    device: str,
    report: "ReportEpoch",
) -> None:
    """Train a task with each seed, 0, 1, …, below `seeds`; write it to `out`.

    `data` has the examples "train" and "dev"; `settings` say whether ELMo is used, with the vectors
    of `model`. Nothing is done if `out` exists. `report` is called at the start of each seed and
    after each epoch. An interrupted training is resumed from `work`.
    """
    from elmo.model.config import read_config
    from elmo.tasks.task import train_task

    if not out.exists():
        train_task(
            kind,
            data["train"],
            data["dev"],
            out=out,
            settings=settings,
            model=None if settings.elmo == "none" else model,
            seeds=range(seeds),
            work=work,
            tokenizer=read_config(model).tokenizer,
            device=device,
            report=report,
        )


def score_seeds(folder: Path, test: "ExampleSet", *, work: Path, device: str) -> list["Tally"]:
    """Count what each seed of the trained task in `folder` gets right on the labelled file `test`.

    Returns a tally for each: counts by unit of the file, from which scores and intervals are
    computed. `work` keeps the file's vectors for the next call.
    """
    from elmo.tasks.examples import distinct_sentences
    from elmo.tasks.task import Task, read_task
    from elmo.tasks.vectors import build_sentence_store

    record = read_task(folder)
    vectors = None
    if record.settings.elmo == "frozen":
        vectors = build_sentence_store(
            distinct_sentences(test.examples),
            model=folder / "model",
            work=work,
            layers=record.settings.layers,
            device=device,
        )
    return [
        Task.load(folder, seed=seed, device=device, vectors=vectors).tally(test)
        for seed in record.seeds
    ]


class TrainProgress:
    """The `report` callback of a task's training: writes a line per epoch to the stage's log file.

    The line begins with `name`. `open_run(seed)` returns the function that logs a seed's figures;
    `show(seed, epoch, score)` updates the progress bar.
    """

    def __init__(
        self,
        open_run: Callable[[int], Callable[..., None]] | None = None,
        *,
        name: str = "",
        show: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self._name, self._seed, self._best = name, 0, -1.0
        self._open_run, self._log, self._show = open_run, log_nothing, show

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        """Hear of a seed or an epoch."""
        if kind == "seed":
            self._seed, self._best = int(figures["seed"]), -1.0
            if self._open_run is not None:
                self._log = self._open_run(self._seed)
            return
        self._log(figures, step=int(figures["epoch"]))
        scores = {k: v for k, v in figures.items() if k not in NOT_SCORES}
        metric, first = next(iter(scores.items()))
        if self._show is not None:
            self._show(self._seed, int(figures["epoch"]), f"{metric} {first:.3f}")
        mark = ", best so far" if first > self._best else ""
        self._best = max(self._best, first)
        epoch = f"{self._name}seed {self._seed} epoch {int(figures['epoch'])}"
        log_detail(f"{epoch}: loss {figures['loss']:.4g}, {scores_text(scores)}{mark}")


def log_nothing(figures: dict[str, float], *, step: int) -> None:
    """Do nothing: where no run is tracked, this takes the figures."""


def gain_of(ours: Sequence["Tally"], theirs: Sequence["Tally"]) -> dict[str, float | None]:
    """Return the mean gain of `ours` over `theirs` in the first score, with 95 % intervals.

    Both have a tally for each seed. One interval is over seeds (Student's t; None for one seed),
    which tells of training; one over units of the test file (paired bootstrap).
    """
    from elmo.tasks.metrics import interval_over_seeds, main_score, paired_bootstrap

    scores = [[main_score(tally.scores()) for tally in one] for one in (ours, theirs)]
    gains = [a - b for a, b in zip(*scores, strict=True)]
    low, high = interval_over_seeds(gains) or (None, None)
    test_low, test_high = paired_bootstrap(ours, theirs)
    return {
        "gain": statistics.fmean(gains),
        "gain_low": low,
        "gain_high": high,
        "gain_test_low": test_low,
        "gain_test_high": test_high,
    }


def _simple(kind: str, data: Mapping[str, "ExampleSet"], model: Path) -> dict[str, "Tally"]:
    """Return what simple baselines get right on the test file."""
    from elmo.model.embedder import Embedder
    from elmo.tasks.baselines import baselines

    return baselines(kind, data, Embedder.load(model, device="cpu").encode_types)


def _figures(
    tallies: Mapping[str, Sequence["Tally"]], data: Mapping[str, "ExampleSet"]
) -> dict[str, Any]:
    means = {arm: mean_over_seeds([one.scores() for one in of]) for arm, of in tallies.items()}
    figures: dict[str, Any] = {
        arm: {name: float(f"{value:.6g}") for name, value in row.items()}
        for arm, row in means.items()
    }
    metric = _metric(figures)
    figures[metric] = next(figures[arm][metric] for arm in ARMS if arm in figures)
    if means.keys() >= ARMS.keys():
        figures |= gain_of(tallies["elmo"], tallies["baseline"])
    figures["seeds"] = len(tallies[next(arm for arm in ARMS if arm in tallies)])
    figures["examples"] = {split: len(labelled.examples) for split, labelled in data.items()}
    return figures


def _metric(figures: Mapping[str, Any]) -> str:
    """The name of the task's first score."""
    arm = next(arm for arm in ARMS if arm in figures)
    return min(figures[arm], key=score_order)


def _write_curve(path: Path, curves: Mapping[str, Sequence[float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as new, new.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(["epoch", *curves])
        for epoch in range(max(map(len, curves.values()))):
            row = [f"{curve[min(epoch, len(curve) - 1)]:.6g}" for curve in curves.values()]
            table.writerow([epoch + 1, *row])


def scores_text(figures: Mapping[str, float]) -> str:
    """Return scores as text, such as `f1 0.7012, accuracy 0.9000`."""
    return ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
