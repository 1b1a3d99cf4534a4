"""The shared part of pretraining and fine-tuning: workers, MLflow run, curves, model folder."""

import csv
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from elmo.data.shards import Shards
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.io.atomic import sweep
from elmo.io.folders import Flag, new_folder
from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.io.outputs import check_folder, check_output
from elmo.model.folder import OTHER_FILE_PATTERN, save_model
from elmo.settings import CheckpointSettings, TrainingSettings
from elmo.train.checkpoints import Checkpoint
from elmo.train.curves import CURVES
from elmo.train.job import TrainingJob
from elmo.train.loop import fit, heldout_perplexity
from elmo.train.perplexity import OnWindow
from elmo.train.step import WorkerGroup

from .. import tracking
from ..cluster import restarts
from ..cluster import workers as ray_cluster
from ..cluster.job import JOB
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..terminal.progress import Progress, log_detail, say, show_activity
from ..terminal.urls import without_credentials_in
from .stage import Stage

TextFigures = dict[str, dict[str, float | None]]  # of each text, by name

_LIVE, _BEFORE, _STOP = "live.json", "before.json", "stop-"  # files of a run's folder
_OFTEN, _SELDOM = 0.5, 2.0  # seconds between looks at what a worker reports: a disk's, a URL's
_REPORTS = ("train", "heldout")  # the reports of a training that curves have: KIND.tsv
SILENCE = 40.0  # seconds without figures after which the terminal shows it


class PreparedJob(NamedTuple):
    """A training job as one worker runs it, with its data loaded.

    `text` is the name of its own held-out text, and `others` are jobs that only measure the same
    model on other texts, by their names. With `compared`, all texts are also measured before the
    first step. `words_added` is by how many words fine-tuning has extended the vocabulary.
    """

    job: TrainingJob
    text: str
    others: dict[str, TrainingJob]
    compared: bool
    words_added: int
    tokenizer: Tokenization  # of the text that the model is for


class StageJob(Protocol):
    """The inputs of a stage's training: small, since it is pickled and sent to each worker."""

    def prepare(self, settings: "RunSettings") -> PreparedJob:
        """Load the inputs on a worker, and return the job to run."""


@dataclass(frozen=True)
class RunSettings:
    """The settings that are sent to each worker besides the job.

    `folder` keeps the checkpoints of this run, from which a later start with the same inputs and
    params resumes; the flag `stop` asks only the present start to end. The model goes to `out`, and
    `lineage`, of what made it, into its `training.json`. `threads` are those of each worker.
    """

    stage: str
    folder: Location
    stop: Flag
    out: Location
    training: TrainingSettings
    checkpointing: CheckpointSettings
    threads: int
    lineage: dict[str, Any]


class TrainingResult(NamedTuple):
    """The result of training: held-out figures by text after it, and before it if asked for.

    `steps` and `tokens` are what was trained on in all, `words_added` is as in `PreparedJob`, and
    `digest` is the model's.
    """

    before: TextFigures
    after: TextFigures
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

    `params` is the stage's section of settings. A run is resumed if `inputs`, digests by name, and
    `params` are equal, with the number of rows that follows from the text where they have 0. The
    MLflow run lists `sources`, the folders of these inputs, as its datasets; `corpus` are the
    shards that are trained on. The first worker writes the model folder `out`;
    the curves go to the folder `curves`, and `work` keeps checkpoints.
    """
    _check_outputs(out, curves)
    tokens = Shards(sources["corpus"]).tokens("train")
    training = params.training.with_chosen_rows(tokens)
    if training != params.training:
        params = replace(params, training=training)
        log_detail(f"{stage.name}.training.rows: {training.rows}, for {tokens:,} tokens")
    if training.start_from:
        start = Location(training.start_from).absolute()
        training = replace(training, start_from=start.url)
        inputs = inputs | {"start_from": Checkpoint.digest(start)}
    folder = work / stage.name / fingerprint(stage.name, stage.version, params, inputs)
    tracking.check_mlflow()
    run = tracking.run(stage.name, params, inputs=inputs, sources=sources, folder=folder)
    with (
        work_folder_lock(folder.local) if folder.local else nullcontext(),
        _kept(folder),
        run as log,
    ):
        _sweep(folder)
        settings = RunSettings(
            stage=stage.name,
            folder=folder,
            stop=Flag(folder, f"{_STOP}{uuid.uuid4().hex[:8]}"),
            out=out,
            training=training,
            checkpointing=CheckpointSettings(minutes=cluster.checkpoint_minutes, keep=cluster.keep),
            threads=cluster.cpus,
            lineage={
                "stage": stage.name,
                "inputs": inputs,
                "run_id": log.run_id,
                "params": without_credentials_in(asdict(params)),
            },
        )
        _log_curves(log, folder)  # what MLflow lacks of the run that is resumed
        with restarts.run_alongside(_log_reports, log, folder):
            trained = _on_workers(job, settings, cluster)
        _log_curves(log, folder)
        with new_folder(Location(curves), ours=tuple(CURVES), also="") as new:
            for name in CURVES:
                (new / name).write_bytes(folder.read(name))
        log.log_metrics(_flat(trained), step=trained.steps)
        log.log_artifact(curves)
        log.set_tag("model_digest", trained.digest)
        log.log_to_parent(_headline(stage.name, trained, _live(folder)), _main(stage.name, params))
        folder.remove()  # a run that is forced finds nothing finished
    return trained


def _log_reports(log: tracking.Run, folder: Location, done: threading.Event) -> None:
    """Log what the first worker reports in `folder` to MLflow until `done`.

    A report may be missed: `_log_curves` completes the figures.
    """
    seen = ""
    while not done.wait(_pause(folder)):
        text = _live(folder)
        figures = json.loads(text) if text != seen else {}
        seen = text
        if (kind := figures.get("kind")) in _REPORTS:
            log.log_metrics(
                {
                    f"{kind}.{name}": value
                    for name, value in figures.items()
                    if name not in ("step", "kind", "began")
                },
                step=int(figures["step"]),
            )


def _log_curves(log: tracking.Run, folder: Location) -> None:
    """Log the figures that the curves in `folder` have and MLflow lacks."""
    for kind in _REPORTS:
        if folder.exists(f"{kind}.tsv"):
            text = folder.read(f"{kind}.tsv").decode()
            log.log_steps(
                (int(row.pop("step")), {f"{kind}.{name}": float(row[name]) for name in row})
                for row in csv.DictReader(text.splitlines(), delimiter="\t")
            )


def _check_outputs(out: Location, curves: Path) -> None:
    """Refuse outputs that are each other's, or would replace what is not a stage's own."""
    if out == Location(curves):
        raise ElmoError(f"{out}: is named for the model and for its curves; name two folders")
    check_folder(out, ours=("config.json", "weights.safetensors"), also=OTHER_FILE_PATTERN)
    check_folder(Location(curves), ours=tuple(CURVES), also="")
    for name, columns in CURVES.items():
        check_output(curves / name, ours="\t".join(columns).encode() + b"\n")


def _sweep(folder: Location) -> None:
    """Delete what a start that was killed has left in the run's folder, but its checkpoints."""
    for name in folder.names():
        if name.startswith(_STOP):
            folder.delete(name)
    if folder.local:
        sweep(folder.local)
    folder.sweep()


def _on_workers(job: StageJob, settings: RunSettings, cluster: Cluster) -> TrainingResult:
    """Train the job on the workers, showing how it goes; `KeyboardInterrupt` where it was stopped
    and has saved."""
    with _shown(settings.stage, settings.folder):
        ended = ray_cluster.fit(
            _loop,
            {"job": job, "settings": settings},
            cluster=cluster,
            label=settings.stage,
            name=_name(settings),
            storage=settings.folder,
            stop=settings.stop,
        )
    if isinstance(ended, str):
        raise ElmoError(ended)
    if ended is None:
        raise KeyboardInterrupt
    return TrainingResult(*ended)


def _name(settings: RunSettings) -> str:
    """Name the training for Ray's dashboard, which several people may share: the stage, the job or
    else the project, and which work in progress it is."""
    whose = re.sub(r"[^\w-]", "_", os.environ.get(JOB) or Path.cwd().name)
    return f"{settings.stage}-{whose}-{settings.folder.last[:8]}"


def _headline(stage: str, trained: TrainingResult, live: str) -> dict[str, float | None]:
    """The figures of a training that people compare, as the run of the pass names them."""
    averages = {text: one["average"] for text, one in trained.after.items()}
    figures = {f"{stage}.perplexity.{text}": average for text, average in averages.items()}
    for text, one in trained.before.items():
        before, after = one["average"], averages[text]
        if before and after:
            figures[f"{stage}.gain.{text}"] = 1 - after / before
    rate = json.loads(live).get("tokens_per_second") if live else None
    return figures | {f"{stage}.tokens_per_second": rate}


def _main(stage: str, params: Any) -> dict[str, Any]:
    """The params of a training that people change."""
    training = params.training
    chosen = {name: getattr(training, name) for name in ("epochs", "rows", "precision", "seed")}
    chosen["lr"] = training.optimizer.lr
    if network := getattr(params, "network", None):
        chosen |= {name: getattr(network, name) for name in ("layers", "cells", "projection")}
    return {f"{stage}.{name}": value for name, value in chosen.items()}


def _flat(trained: TrainingResult) -> dict[str, float]:
    """The figures by `when.text.name`, as MLflow names metrics."""
    return {
        f"{when}.{text}.{name}": value
        for when, texts in (("before", trained.before), ("after", trained.after))
        for text, figures in texts.items()
        for name, value in figures.items()
        if value is not None
    }


@contextmanager
def _kept(folder: Location) -> Iterator[None]:
    """Leave nothing of a run that fails before there is anything to resume from."""
    try:
        yield
    except BaseException:
        if not folder.folders() and not folder.exists(_BEFORE):
            folder.remove()
        raise


def _loop(
    config: dict[str, Any], rank: int, size: int, device: str
) -> tuple[Any, ...] | str | None:
    """Train on each worker; return a `TrainingResult` as a tuple, or None if it was interrupted.

    A refusal is returned as its message: Ray would try again and again what raises.
    """
    try:
        workers = WorkerGroup(rank, size, torch.device(device))
        return tuple(_work(config["job"], config["settings"], workers))
    except KeyboardInterrupt:
        return None
    except ElmoError as error:
        return str(error)


def _work(stage_job: StageJob, settings: RunSettings, workers: WorkerGroup) -> TrainingResult:
    torch.set_num_threads(max(1, settings.threads))
    prepared = stage_job.prepare(settings)
    job = prepared.job
    job.bilm.to(workers.device)
    job.softmax.to(workers.device)
    before: TextFigures = {}
    live = _Live(settings.folder, shown=workers.rank == 0)
    if prepared.compared:
        before = _remembered(
            settings.folder, workers, lambda: _figures(prepared, workers, None, live)
        )
    progress = fit(
        replace(job, on_window=live.show_measuring(prepared.text)), workers=workers, report=live
    )
    after = _figures(prepared, workers, progress.figures, live)
    digest = ""
    if workers.rank == 0:
        perplexity = {"before": before, "after": after} if before else {"after": after}
        digest = save_model(
            settings.out,
            bilm=job.bilm,
            vocabulary=job.vocabulary,
            characters=job.characters,
            softmax={name: value.detach() for name, value in job.softmax.state_dict().items()},
            training=settings.lineage | {"perplexity": perplexity},
            tokenizer=prepared.tokenizer,
        )
    return TrainingResult(
        before, after, progress.step, progress.tokens, prepared.words_added, digest
    )


def _figures(
    prepared: PreparedJob,
    workers: WorkerGroup,
    own: dict[str, float | None] | None,
    live: "_Live",
) -> TextFigures:
    """Perplexities on all of the held-out texts; those of the job's own text may be known."""

    def measure(text: str, job: TrainingJob) -> dict[str, float | None]:
        shown = replace(job, on_window=live.show_measuring(text))
        return heldout_perplexity(shown, workers=workers).to_dict()

    own = own or measure(prepared.text, prepared.job)
    return {prepared.text: own} | {
        text: measure(text, job) for text, job in prepared.others.items()
    }


def _remembered(
    folder: Location, workers: WorkerGroup, compute: Callable[[], TextFigures]
) -> TextFigures:
    """Return what was computed before the first step: its weights are gone after a restart.

    Only the first worker reads it, and only it needs it.
    """
    first = workers.rank == 0
    if workers.sum_over_workers([float(first and folder.exists(_BEFORE))])[0] > 0:
        return folder.read_record(_BEFORE, TextFigures) if first else {}
    figures = compute()
    if first:
        folder.write_json(_BEFORE, figures)
    return figures


class _Live:
    """Receives the training's reports, and leaves the newest in the run's folder, where the driver
    reads it for the terminal and for MLflow; the workers but the first have theirs not `shown`."""

    def __init__(self, folder: Location, *, shown: bool) -> None:
        self.folder, self.shown, self.written = folder, shown, 0.0
        self.began: dict[str, float] = {}
        self.rate: dict[str, float] = {}

    def __call__(self, kind: str, figures: dict[str, float]) -> None:
        if kind == "machine":
            self.began = {**figures, "at": time.time()}
        if kind == "train":
            self.rate = {"tokens_per_second": figures["tokens_per_second"]}
        self._write(kind, figures, seldom=kind == "train" and self.folder.local is None)

    def show_measuring(self, text: str) -> OnWindow:
        """Return what shows how far the measuring of a held-out text is."""
        return lambda read, tokens: self._write(
            "measure", {"text": text, "read": read, "heldout_tokens": tokens}, seldom=True
        )

    def _write(self, kind: str, figures: Mapping[str, Any], *, seldom: bool) -> None:
        """Write a report; with `seldom` only if the last one is so old that it was read."""
        now = time.monotonic()
        if self.shown and not (seldom and now - self.written < _pause(self.folder)):
            self.written = now
            report = {"kind": kind, **self.rate, **figures, "began": self.began}
            self.folder.write_json(_LIVE, report)


@contextmanager
def _shown(stage: str, folder: Location) -> Iterator[None]:
    """Show on the terminal how the training goes, from whichever worker it comes."""
    folder.delete(_LIVE)
    with restarts.run_alongside(_show, stage, folder):
        yield


def _show(stage: str, folder: Location, done: threading.Event) -> None:
    """Read what the first worker reports, in `folder`, and show it until `done`."""
    seen, heard, heldout, activity = "", time.monotonic(), "", ""
    shown_at = heard
    began: dict[str, float] = {}
    with ExitStack() as stack:
        progress: Progress | None = None
        while not done.wait(_pause(folder)):
            text = _live(folder)
            now = time.monotonic()
            if text in ("", seen):
                if now - shown_at > SILENCE:
                    shown_at = now
                    why = restarts.silence_reason(
                        folder, begun=progress is not None, activity=activity
                    )
                    say(f"{stage}: no figures for {now - heard:.0f} s: {why}")
                continue
            seen, heard, shown_at = text, now, now
            figures = json.loads(text)
            activity = _activity(figures)
            if figures["kind"] != "train":
                show_activity(activity)
            if figures.get("began", began) != began:  # its own report may have been missed
                began = figures["began"]
                if began.get("step"):
                    say(f"{stage}: resuming from step {began['step']:.0f}")
            if figures["kind"] == "heldout":
                heldout = f", held-out perplexity {figures['average']:.1f}"
                log_detail(f"step {figures['step']:.0f}{heldout}")
            elif figures["kind"] == "train":
                read = figures["tokens"]
                if progress is None:
                    left = figures["seconds_left"] * figures["tokens_per_second"]
                    shown = Progress(stage, read + left, unit="tokens", done=read)
                    progress = stack.enter_context(shown)
                progress.reach(read, _note(figures, heldout))


def _activity(figures: dict[str, Any]) -> str:
    """Name the text that the workers measure, if they do."""
    if figures["kind"] != "measure":
        return ""
    return (
        f"measuring {figures['heldout_tokens']:,} held-out tokens of the {figures['text']} text, "
        f"{figures['read'] / max(1, figures['heldout_tokens']):.0%} done"
    )


def _note(figures: dict[str, float], heldout: str) -> str:
    return (
        f"step {figures['step']:.0f}, perplexity {figures['perplexity']:.1f}{heldout}, "
        f"gradient norm {figures['gradient_norm']:.2f} ({figures['clipped']:.0%} clipped), "
        f"{figures['peak_memory_mb']:.0f} MB"
    )


def _pause(folder: Location) -> float:
    return _OFTEN if folder.local else _SELDOM


def _live(folder: Location) -> str:
    """The newest report; empty where there is none yet, or the store does not answer for now."""
    try:
        return folder.read(_LIVE).decode()
    except (FileNotFoundError, ElmoError):
        return ""
