"""The shared code of pretraining and fine-tuning: workers, MLflow run, curves, model folder."""

import csv
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch

from elmo.data.shards import Shards
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.io.atomic import check_output, delete_leftovers
from elmo.io.folders import Flag, check_output_folder, new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.model.folder import TEXT_FILE_PATTERN, save_model
from elmo.settings import CheckpointSettings, TrainingSettings
from elmo.train.curves import CURVES
from elmo.train.job import TrainingJob
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.step import WorkerGroup

from ..cluster import workers as ray_cluster
from ..cluster.job import JOB_VARIABLE
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..terminal.progress import log_detail
from ..terminal.urls import hide_credentials_in
from ..tracking.client import check_mlflow
from ..tracking.runs import Run, start_run
from . import live
from .stage import Stage

TextFigures = dict[str, dict[str, float | None]]  # by text and name

_FIGURES_BEFORE_FILE = "before.json"  # in the folder of a run
_CURVE_KINDS = ("train", "heldout")  # kinds of reports with a curve, KIND.tsv


class PreparedJob(NamedTuple):
    """A training job on one worker, with its data loaded.

    `text` names the held-out text of `job`; `other_jobs` only measure the same model on other
    texts, by name. If `measures_first`, all texts are also measured before the first step.
    `words_added` counts the words that fine-tuning adds to the vocabulary.
    """

    job: TrainingJob
    text: str
    tokenizer: Tokenization  # recorded with the model
    other_jobs: Mapping[str, TrainingJob] = MappingProxyType({})
    measures_first: bool = False
    words_added: int = 0


class StageJob(Protocol):
    """The inputs of a stage's training; keep it small, because each worker gets a pickled copy."""

    def prepare(self, settings: "RunSettings") -> PreparedJob:
        """Load the inputs on a worker, and return the job to run."""


@dataclass(frozen=True)
class RunSettings:
    """The settings that are sent to each worker besides the job.

    `folder` keeps the checkpoints of this run; a later run with the same inputs and params resumes
    from them. `stop_flag` stops only this process's training. The model is written to `out`, with
    its `lineage` in `training.json`. `threads` is the number of threads of each worker.
    """

    stage: str
    folder: Location
    stop_flag: Flag
    out: Location
    training: TrainingSettings
    checkpointing: CheckpointSettings
    threads: int
    lineage: dict[str, Any]


class TrainingResult(NamedTuple):
    """The result of training: held-out figures by text, after and, if requested, before it.

    `steps` and `tokens` are totals of the training. `words_added` is as in `PreparedJob`, and
    `digest` is the model's digest.
    """

    figures_before: TextFigures
    figures_after: TextFigures
    steps: int
    tokens: int
    words_added: int
    digest: str


def train(
    stage: Stage,
    params: Any,
    job: StageJob,
    *,
    inputs: dict[str, str],
    sources: dict[str, Location],
    out: Location,
    curves: Path,
    work: Location,
    cluster: Cluster,
) -> TrainingResult:
    """Train `job` on the cluster's workers, and return its figures; resume an interrupted run.

    `params` is the stage's section of settings. A run is resumed if `params` and `inputs` (digests
    by name) are the same; if the number of epochs is 0, the number chosen for the text counts.
    `sources` has the folders of the inputs, which the MLflow run lists as datasets; `corpus` has
    the shards to train on. The first worker writes the model folder `out`. The curves are written
    to the folder `curves`, and `work` keeps checkpoints.
    """
    _check_outputs(out, curves)
    tokens = Shards(sources["corpus"]).tokens("train")
    training = params.training.with_chosen_epochs(tokens)
    if training != params.training:
        params = replace(params, training=training)
        log_detail(f"{stage.name}.training.epochs: {training.epochs}, for {tokens:,} tokens")
    folder = work / stage.name / fingerprint(stage.name, stage.version, params, inputs)
    check_mlflow()
    run_context = start_run(stage.name, params, inputs=inputs, sources=sources, folder=folder)
    with (
        work_folder_lock(folder.local) if folder.local else nullcontext(),
        _discard_if_nothing_saved(folder),
        run_context as mlflow_run,
    ):
        if folder.local:
            delete_leftovers(folder.local)
        settings = RunSettings(
            stage=stage.name,
            folder=folder,
            stop_flag=Flag(folder, f"stop-{uuid.uuid4().hex[:8]}"),
            out=out,
            training=training,
            checkpointing=CheckpointSettings(minutes=cluster.checkpoint_minutes, keep=cluster.keep),
            threads=cluster.cpus,
            lineage={
                "stage": stage.name,
                "inputs": inputs,
                "run_id": mlflow_run.run_id,
                "params": hide_credentials_in(asdict(params)),
            },
        )
        _log_curves(mlflow_run, folder)  # those from before the resume that MLflow lacks
        result = _train_on_workers(job, settings, cluster, mlflow_run)
        _log_curves(mlflow_run, folder)
        with new_folder(Location(curves), required=tuple(CURVES), pattern="") as new_curves:
            for name in CURVES:
                (new_curves / name).write_bytes(folder.read(name))
        mlflow_run.log_metrics(_flatten(result), step=result.steps)
        mlflow_run.log_artifact(curves)
        mlflow_run.set_tag("model_digest", result.digest)
        folder.remove()  # so that a forced run starts anew
    return result


def _log_report(mlflow_run: Run, report: dict[str, Any]) -> None:
    """Log the figures that the first worker reported; `_log_curves` adds any that were missed."""
    if (kind := report["kind"]) in _CURVE_KINDS:
        names = report.keys() - {"kind", "step", "began"}
        figures = {f"{kind}.{name}": report[name] for name in names}
        mlflow_run.log_metrics(figures, step=int(report["step"]))


def _log_curves(mlflow_run: Run, folder: Location) -> None:
    """Log the figures in the curves in `folder` that MLflow lacks."""
    for kind in _CURVE_KINDS:
        if folder.exists(f"{kind}.tsv"):
            text = folder.read(f"{kind}.tsv").decode()
            mlflow_run.log_steps(
                (int(row.pop("step")), {f"{kind}.{name}": float(row[name]) for name in row})
                for row in csv.DictReader(text.splitlines(), delimiter="\t")
            )


def _check_outputs(out: Location, curves: Path) -> None:
    """Refuse outputs that would overwrite files of another program."""
    check_output_folder(
        out, required=("config.json", "weights.safetensors"), pattern=TEXT_FILE_PATTERN
    )
    check_output_folder(Location(curves), required=tuple(CURVES), pattern="")
    for name, columns in CURVES.items():
        check_output(curves / name, pattern="\t".join(columns).encode() + b"\n")


def _train_on_workers(
    job: StageJob, settings: RunSettings, cluster: Cluster, mlflow_run: Run
) -> TrainingResult:
    """Train the job on the workers and show its progress; raise `KeyboardInterrupt` if it was
    stopped after saving a checkpoint."""
    project = re.sub(r"[^\w-]", "_", os.environ.get(JOB_VARIABLE) or Path.cwd().name)
    with live.following_reports(settings.stage, settings.folder, partial(_log_report, mlflow_run)):
        result = ray_cluster.fit(
            _train_on_worker,
            {"job": job, "settings": settings},
            cluster=cluster,
            label=settings.stage,
            # For Ray's dashboard, which may show runs of several projects.
            name=f"{settings.stage}-{project}-{settings.folder.folder_name[:8]}",
            storage=settings.folder,
            stop_flag=settings.stop_flag,
        )
    if isinstance(result, str):
        raise ElmoError(result)
    if result is None:
        raise KeyboardInterrupt
    return TrainingResult(*result)


def _flatten(result: TrainingResult) -> dict[str, float]:
    """Return the figures under MLflow's metric names, `time.text.name`."""
    return {
        f"{time}.{text}.{name}": value
        for time, texts in (("before", result.figures_before), ("after", result.figures_after))
        for text, figures in texts.items()
        for name, value in figures.items()
        if value is not None
    }


@contextmanager
def _discard_if_nothing_saved(folder: Location) -> Iterator[None]:
    """Remove the folder of a run that fails before it has saved anything to resume from."""
    try:
        yield
    except BaseException:
        if not folder.folders() and not folder.exists(_FIGURES_BEFORE_FILE):
            folder.remove()
        raise


def _train_on_worker(
    config: dict[str, Any], rank: int, size: int, device: str
) -> tuple[Any, ...] | str | None:
    """Train on each worker; return a `TrainingResult` as a tuple, or None if it was interrupted.

    An `ElmoError` is returned as its message, because Ray would retry a function that raises.
    """
    try:
        workers = WorkerGroup(rank, size, torch.device(device))
        return tuple(_train_and_measure(config["job"], config["settings"], workers))
    except KeyboardInterrupt:
        return None
    except ElmoError as error:
        return str(error)


def _train_and_measure(
    stage_job: StageJob, settings: RunSettings, workers: WorkerGroup
) -> TrainingResult:
    torch.set_num_threads(max(1, settings.threads))
    prepared_job = stage_job.prepare(settings)
    job = prepared_job.job
    job.bilm.to(workers.device)
    job.softmax.to(workers.device)
    figures_before: TextFigures = {}
    reports = live.ReportWriter(settings.folder, is_first_worker=workers.rank == 0)
    if prepared_job.measures_first:
        figures_before = _measure_once(
            settings.folder, workers, lambda: _measure_texts(prepared_job, workers, None, reports)
        )
    progress = fit(
        replace(job, on_window=reports.show_measuring(prepared_job.text)),
        workers=workers,
        report=reports,
    )
    figures_after = _measure_texts(prepared_job, workers, progress.figures, reports)
    digest = ""
    if workers.rank == 0:
        perplexity = {"before": figures_before} if figures_before else {}
        perplexity |= {"after": figures_after}
        digest = save_model(
            settings.out,
            bilm=job.bilm,
            vocabulary=job.vocabulary,
            characters=job.characters,
            softmax={name: value.detach() for name, value in job.softmax.state_dict().items()},
            training=settings.lineage | {"perplexity": perplexity},
            tokenizer=prepared_job.tokenizer,
        )
    return TrainingResult(
        figures_before,
        figures_after,
        progress.step,
        progress.tokens,
        prepared_job.words_added,
        digest,
    )


def _measure_texts(
    prepared_job: PreparedJob,
    workers: WorkerGroup,
    figures: dict[str, float | None] | None,
    reports: live.ReportWriter,
) -> TextFigures:
    """Return perplexities on all held-out texts; `figures`, if given, are for the job's text."""

    def measure(text: str, job: TrainingJob) -> dict[str, float | None]:
        reporting_job = replace(job, on_window=reports.show_measuring(text))
        return heldout_perplexity(reporting_job, workers=workers).to_dict()

    figures = figures or measure(prepared_job.text, prepared_job.job)
    return {prepared_job.text: figures} | {
        text: measure(text, job) for text, job in prepared_job.other_jobs.items()
    }


def _measure_once(
    folder: Location, workers: WorkerGroup, compute: Callable[[], TextFigures]
) -> TextFigures:
    """Return the figures from before the first step, which a resumed run cannot compute again.

    Only the first worker reads them; the others get {}.
    """
    is_first_worker = workers.rank == 0
    is_computed = float(is_first_worker and folder.exists(_FIGURES_BEFORE_FILE))
    if workers.sum_over_workers([is_computed])[0] > 0:
        return folder.read_record(_FIGURES_BEFORE_FILE, TextFigures) if is_first_worker else {}
    figures = compute()
    if is_first_worker:
        folder.write_json(_FIGURES_BEFORE_FILE, figures)
    return figures
