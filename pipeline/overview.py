"""The lines of `elmo runs`: local work in progress, and MLflow's runs, versions and stores."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import registry, tracking

FIGURES = ("after.task.average", "after.general.average", "tokens")  # the first a run has is shown


def lines(folder: Path, *, name: str, count: int, send: bool) -> Iterator[str]:
    """The overview; with `send`, what MLflow could not take before is sent first."""
    yield from _local(folder, send)
    tracking.check()
    yield f"runs in {tracking.shown_uri()}:"
    for row in tracking.latest_runs(count):
        yield "  " + _run(row)
    rows = registry.versions(name)
    yield f"versions of {name}:" if rows else f"versions of {name}: none"
    for row in rows:
        yield "  " + _version(row)
    stores = {
        row["store_place"]: row
        for stage in ("features", "append")
        for row in tracking.runs_of(stage)
        if "store_place" in row
    }
    yield "stores:" if stores else "stores: none"
    for location, row in sorted(stores.items()):
        gone = "" if "://" in location or Path(location).exists() else " (not here)"
        yield f"  {location}  digest {row['store'][:12]}  model {row['model_digest'][:12]}{gone}"


def _local(folder: Path, send: bool) -> Iterator[str]:
    work = sorted(path.parent for path in folder.glob("*/*/mlflow.json"))
    yield f"work in progress in {folder}:" if work else f"work in progress in {folder}: none"
    for path in work:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(path.stat().st_mtime))
        yield f"  {path.parent.name} {path.name}  {when}"
    for spool in sorted(folder.glob("*/unsent")):
        left = tracking.send_unsent(spool) if send else tracking.unsent(spool)
        if left:
            yield f"  {left} records in {spool} wait for MLflow; to send them: elmo runs --send"


def _run(row: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["began"] / 1000))
    figure = next((f"{n} {row['metrics'][n]:,.6g}" for n in FIGURES if n in row["metrics"]), "")
    return f"{when}  {row['name']}  {row['status'].lower()}  {figure}".rstrip() + (
        f"  {row['run_id'][:8]}"
    )


def _version(row: dict[str, Any]) -> str:
    aliases = f" ({', '.join(row['aliases'])})" if row["aliases"] else ""
    scores = [
        f"{text} {row[key]}"
        for text in registry.TEXTS
        if (key := f"perplexity.after.{text}") in row
    ]
    return f"{row['version']}{aliases}  model {row.get('model_digest', '')[:12]}" + (
        f"  perplexity: {', '.join(scores)}" if scores else ""
    )
