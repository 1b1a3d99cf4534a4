"""tasks: a task learned from labelled files, with ELMo and without, scored on a test file."""

import csv
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import NotFound
from elmo.io.atomic import check_output, check_writable, new_file
from elmo.io.folders import check_output_folder, link_folder, local_folder, new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.store import model_digest
from elmo.tasks import RESULTS_VERSION
from elmo.tasks.kinds import task_settings
from elmo.tasks.metrics import score_order
from elmo.tasks.settings import TaskSettings

from ..cluster import workers
from ..report.phrases import ARMS, SIMPLE_BASELINES, interval_text
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..settings.params import Params, ProjectTask
from ..terminal.progress import Progress, log_detail, say
from ..tracking.runs import Run, start_run
from .stage import WORK_ARGUMENT, Argument, Figures, Stage
from .task_training import (
    TrainProgress,
    format_scores,
    name_by_seed,
    read_labelled_files,
    say_remark,
    say_training_remarks,
    source_digest,
    train_variant,
    warn_unknown_labels,
)

if TYPE_CHECKING:
    from elmo.tasks.formats.fields import ExampleSet
    from elmo.tasks.metrics import Tally

MAIN_SCORES = ("f1", "accuracy")  # one of them is the first score of each task


def _run(params: Params, name: str, model: Location, cluster: Cluster, **options: Any) -> Figures:
    if name not in params.tasks:
        names = ", ".join(params.tasks) or "none"
        raise NotFound(f"tasks.{name}: no such task in params.yaml; it has {names}")
    device = "cuda" if cluster.gpu else "cpu"
    with local_folder(model) as local_model:
        train = partial(run, name, local_model, params=params.tasks[name], device=device, **options)
        if not cluster.gpu or workers.has_cuda():
            return train()
        if workers.has_cluster() and not cluster.storage:
            return workers.call_on_gpu(train, cluster=cluster, label=f"tasks {name}")
        say(f"tasks {name}: this machine has no CUDA device; training on the CPU")
        return train(device="cpu")


STAGE = Stage(
    name="tasks",
    version=RESULTS_VERSION + 2,  # 2: the version of what this stage adds
    help="Train the task NAME of params.yaml with and without MODEL's vectors, and score both.",
    inputs=(Argument("name", "word"), Argument("model")),
    outputs=(
        Argument("out", "path"),
        Argument("curve", "path", "Write the scores of each epoch to this file."),
        Argument("picture", "path", "Write the plot of these scores to this file."),
    ),
    run=_run,
    summary=lambda figures, _: summary(figures),
    figure_by_metric={f"{metric}_higher_better": metric for metric in MAIN_SCORES}
    | {"gain_over_without_elmo_higher_better": "gain"},
    describe_score=lambda figures, _: score_text(figures),
    work=replace(WORK_ARGUMENT, kind="path"),
    uses_cluster=True,
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
    """Train the task `name` of the params with ELMo vectors of the model folder `model` in
    `out/elmo`, and without them in `out/baseline`; return the scores on the test file.

    `elmo`, `baseline` and the simple baselines have scores by name. `gain` and the keys that begin
    with it are ELMo's gain over the baseline and its intervals. `curve` is the file for a table of
    the best score on dev so far by epoch, averaged over the seeds; `picture` is for its plot. An
    interrupted run resumes from `work`.
    """
    from elmo.model.config import read_config
    from elmo.model.embedder import Embedder
    from elmo.tasks.baselines import score_baselines
    from elmo.tasks.record import TASK_FILE_PATTERN
    from elmo.tasks.task import check_same_tags

    from ..report import plots

    arms = _choose_arms(params)
    pattern = rf"({'|'.join(ARMS)})/(task\.json|{TASK_FILE_PATTERN})"
    options: dict[str, Any] = {"required": tuple(arms)[:1], "pattern": pattern}
    check_output_folder(Location(out), **options)
    check_writable(out)
    check_output(curve, pattern=rb"epoch(\telmo)?(\tbaseline)?\n")
    plots.check_replaceable_plot(picture)
    sources = {split: Path(getattr(params, split)) for split in ("train", "dev", "test")}
    inputs = {split: source_digest(split, path) for split, path in sources.items()}
    inputs |= {"model": model_digest(model)}
    data = read_labelled_files(
        params.kind,
        sources,
        format=params.format,
        columns=params.columns,
        scheme=params.scheme,
        tokenizer=read_config(model).tokenizer,
    )
    say_remark(data["train"], path=sources["train"])
    for split in ("dev", "test"):
        check_same_tags(data[split], data["train"].scheme)
        warn_unknown_labels(params.kind, data[split], path=sources[split], train=data["train"])
    work_folder = work.absolute() / f"{name}-{fingerprint('tasks', STAGE.version, params, inputs)}"
    epochs = params.seeds * sum(settings.epochs for settings in arms.values())
    with work_folder_lock(work_folder), Progress(f"tasks {name}", epochs, unit="epochs") as bar:
        tallies = {}
        for arm, settings in arms.items():
            run_params = {"task": name, "kind": params.kind, "seeds": params.seeds}
            with start_run(
                "tasks",
                run_params | {"settings": settings},
                inputs=inputs,
                sources={**sources, "model": model},
                folder=Location(work_folder / f"{arm}-run"),
            ) as mlflow_run:
                tallies[arm] = _train(
                    work_folder / arm,
                    data,
                    params,
                    settings,
                    model=model,
                    device=device,
                    bar=bar,
                    mlflow_run=mlflow_run,
                )
        bar.set_completed(epochs, "simple baselines")
        encode = Embedder.load(model, device="cpu").encode_types
        baselines = score_baselines(params.kind, data["train"], data["test"], encode)
        tallies |= {name: [tally] for name, tally in baselines.items()}
        with new_folder(Location(out), **options) as folder:
            for arm in arms:
                link_folder(work_folder / arm, folder / arm)
        figures = _collect_figures(tallies, data)
    _draw_curves(out, arms, curve, picture, metric=_main_metric(figures))
    shutil.rmtree(work_folder, ignore_errors=True)
    return figures


def _draw_curves(
    out: Path, arms: Iterable[str], curve: Path, picture: Path, *, metric: str
) -> None:
    """Write the curves of the arms' tasks in `out` as a table and as a picture."""
    from ..report import plots

    curves = {arm: _mean_curve(out / arm) for arm in arms}
    for path in (curve, picture):
        path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(curve) as new_curve, new_curve.open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, delimiter="\t", lineterminator="\n")
        writer.writerow(["epoch", *curves])
        for epoch in range(max(map(len, curves.values()))):
            row = [f"{scores[min(epoch, len(scores) - 1)]:.6g}" for scores in curves.values()]
            writer.writerow([epoch + 1, *row])
    with new_file(picture) as file:
        plots.draw_task(file, curves, ARMS, score_label=f"best {metric} on dev so far")


def summary(figures: Mapping[str, Any]) -> str:
    """Return the line that the stage prints, from the `figures` of `run`: scores and gain."""
    scores = score_text(figures)
    test = f"{figures['examples']['test']:,} test examples"
    if "gain" not in figures:
        return f"{scores}; {figures['seeds']} seeds, {test}"
    seeds = ""
    if figures["gain_low"] is not None:
        interval = interval_text(figures["gain_low"], figures["gain_high"])
        seeds = f"over {figures['seeds']} seeds {interval}, "
    units = interval_text(figures["gain_test_low"], figures["gain_test_high"])
    return f"{scores}; ELMo's gain {figures['gain']:+.3f}, 95% interval {seeds}over {test} {units}"


def score_text(figures: Mapping[str, Any]) -> str:
    """Return one line with the main score with ELMo, without it, and of each simple baseline. It
    ends with a warning if a simple baseline is as good.

    `figures` has the scores by the names in `ARMS` and `SIMPLE_BASELINES`.
    """
    metric, phrases = _main_metric(figures), ARMS | SIMPLE_BASELINES
    scores = {name: figures[name][metric] for name in phrases if name in figures}
    text = ", ".join(f"{score:.3f} {phrases[name]}" for name, score in scores.items())
    if any(
        scores[name] >= next(iter(scores.values())) for name in SIMPLE_BASELINES if name in scores
    ):
        text += "; no better than a simple baseline, so the score means little"
    return f"{metric} {text}"


def _mean_curve(folder: Path) -> list[float]:
    """Return the mean curve of the seeds; a seed that ended early keeps its last score."""
    from elmo.tasks.comparison import best_by_epoch

    curves = best_by_epoch(folder)
    max_epochs = max(map(len, curves))
    padded_curves = [curve + curve[-1:] * (max_epochs - len(curve)) for curve in curves]
    return [statistics.fmean(values) for values in zip(*padded_curves, strict=True)]


def _choose_arms(params: ProjectTask) -> dict[str, TaskSettings]:
    """Return the settings by arm: `elmo` unless turned off, and `baseline` if requested."""
    settings = task_settings(params.kind, dict(params.settings))
    baseline = task_settings(params.kind, {**params.settings, "elmo": "none"})
    if settings.elmo == "none":
        return {"baseline": baseline}
    return {"elmo": settings} | ({"baseline": baseline} if params.baseline else {})


def _train(
    out: Path,
    data: Mapping[str, "ExampleSet"],
    params: ProjectTask,
    settings: TaskSettings,
    *,
    model: Path,
    device: str,
    bar: Progress,
    mlflow_run: Run,
) -> list["Tally"]:
    """Train one arm unless it is trained; return the tally of each seed on the test file."""
    from elmo.tasks.comparison import evaluate_seeds, mean_over_seeds

    start_count, arm = bar.completed, f"{ARMS[out.name]}, "

    def show_progress(seed: int, epoch: int, score: str) -> None:
        bar.set_completed(
            start_count + seed * settings.epochs + epoch, f"{arm}seed {seed}, {score}"
        )

    train_variant(
        out,
        data,
        params.kind,
        settings,
        seeds=range(params.seeds),
        model=model,
        work=out.parent.parent,
        device=device,
        report=TrainProgress(mlflow_run, name=arm, show_progress=show_progress),
    )
    name = f"{bar.label.removeprefix('tasks ')}, {ARMS[out.name]}"
    say_training_remarks(out, name=name)
    bar.set_completed(start_count + params.seeds * settings.epochs, f"{arm}on the test file")
    tallies, _ = evaluate_seeds(out, data["test"], device=device, work=out.parent.parent)
    scores = [tally.scores() for tally in tallies]
    figures = mean_over_seeds(scores)
    for seed, seed_scores in enumerate(scores):
        figures |= name_by_seed(seed_scores, seed)
        log_detail(f"{arm}seed {seed}: {format_scores(seed_scores)} on test")
    mlflow_run.log_metrics({f"test.{name}": value for name, value in figures.items()})
    return tallies


def _collect_figures(
    tallies: Mapping[str, Sequence["Tally"]], data: Mapping[str, "ExampleSet"]
) -> dict[str, Any]:
    from elmo.tasks.comparison import gain_of, mean_over_seeds

    means = {
        arm: mean_over_seeds([tally.scores() for tally in seed_tallies])
        for arm, seed_tallies in tallies.items()
    }
    figures: dict[str, Any] = {
        arm: {name: float(f"{value:.6g}") for name, value in scores.items()}
        for arm, scores in means.items()
    }
    metric = _main_metric(figures)
    figures[metric] = next(figures[arm][metric] for arm in ARMS if arm in figures)
    if means.keys() >= ARMS.keys():
        figures |= gain_of(tallies["elmo"], tallies["baseline"])
    figures["seeds"] = len(tallies[next(arm for arm in ARMS if arm in tallies)])
    figures["examples"] = {split: len(labelled.examples) for split, labelled in data.items()}
    return figures


def _main_metric(figures: Mapping[str, Any]) -> str:
    """Return the name of the task's main score."""
    arm = next(arm for arm in ARMS if arm in figures)
    return min(figures[arm], key=score_order)
