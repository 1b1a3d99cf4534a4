"""What `elmo runs` shows: local work in progress, and MLflow's runs, versions and stores."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elmo.errors import ElmoError

from .. import tracking
from . import TrackedRun, registry
from .registry import ModelVersion

# The first of these that a run has is shown.
FIGURES = ("after.domain.average", "after.general.average", "tokens")


@dataclass(frozen=True)
class Work:
    """A stage's work in progress; `began` in seconds since 1970."""

    stage: str
    folder: str
    began: float


@dataclass(frozen=True)
class LocalWork:
    """Work in progress below a folder, and by spool how many records wait for MLflow."""

    folder: str
    work: list[Work]
    unsent: dict[str, int]


@dataclass(frozen=True)
class StoreRow:
    """A store that a run wrote; `here` is false where its folder is not on this machine."""

    location: str
    digest: str
    model_digest: str
    here: bool


@dataclass(frozen=True)
class Tracked:
    """What MLflow knows of a project."""

    uri: str
    runs: list[TrackedRun]
    name: str
    versions: list[ModelVersion]
    stores: list[StoreRow]


def local_work(folder: Path, *, send: bool) -> LocalWork:
    """Return what is in progress; with `send`, what MLflow could not take before is sent first."""
    if folder.exists() and not folder.is_dir():
        raise ElmoError(f"{folder}: is no folder; name the one that --work named for the stages")
    left = {
        str(spool): tracking.send_unsent(spool) if send else tracking.unsent(spool)
        for spool in sorted(folder.glob("*/unsent"))
    }
    return LocalWork(
        str(folder),
        [
            Work(path.parent.parent.name, str(path.parent), path.stat().st_mtime)
            for path in sorted(folder.glob("*/*/mlflow.json"))
        ],
        {spool: count for spool, count in left.items() if count},
    )


def tracked(name: str, *, count: int) -> Tracked:
    """The newest `count` runs, the versions of the model `name`, and the stores."""
    tracking.check()
    stores = {
        row.tags["store_place"]: row.tags
        for stage in ("features", "append")
        for row in tracking.runs_of(stage)
        if "store_place" in row.tags
    }
    return Tracked(
        tracking.shown_uri(),
        tracking.latest_runs(count),
        name,
        registry.versions(name),
        [
            StoreRow(
                location,
                tags["store"],
                tags["model_digest"],
                "://" in location or Path(location).exists(),
            )
            for location, tags in sorted(stores.items())
        ],
    )


def local_lines(local: LocalWork) -> Iterator[str]:
    """The same for a person."""
    yield f"work in progress in {local.folder}:" + ("" if local.work else " none")
    for work in local.work:
        yield f"  {work.stage} {Path(work.folder).name}  {_minute(work.began)}"
    for spool, count in local.unsent.items():
        yield f"  {count} records in {spool} wait for MLflow; to send them: elmo runs --send"


def tracked_lines(known: Tracked) -> Iterator[str]:
    """The same for a person."""
    yield f"runs in {known.uri}:"
    for run in known.runs:
        yield "  " + _run(run)
    yield f"versions of {known.name}:" + ("" if known.versions else " none")
    for version in known.versions:
        yield "  " + _version(version)
    yield "stores:" + ("" if known.stores else " none")
    for store in known.stores:
        gone = "" if store.here else " (not here)"
        model = store.model_digest[:12]
        yield f"  {store.location}  digest {store.digest[:12]}  model {model}{gone}"


def _minute(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _run(run: TrackedRun) -> str:
    figure = next((f"{n} {run.metrics[n]:,.6g}" for n in FIGURES if n in run.metrics), "")
    what = f"{_minute(run.began / 1000)}  {run.name}  {run.status.lower()}  {figure}".rstrip()
    return f"{what}  {run.run_id[:8]}"


def _version(row: ModelVersion) -> str:
    aliases = f" ({', '.join(row.aliases)})" if row.aliases else ""
    scores = [
        f"{text} {row.tags[key]}"
        for text in registry.TEXTS
        if (key := f"perplexity.after.{text}") in row.tags
    ]
    return f"{row.version}{aliases}  model {row.tags.get('model_digest', '')[:12]}" + (
        f"  perplexity: {', '.join(scores)}" if scores else ""
    )
