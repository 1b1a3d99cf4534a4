"""The shared code of the stages' commands: read params, run, write the figures, print a line."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError, NotFound
from elmo.io.atomic import check_output_parent
from elmo.io.location import Location

from .options import print_done

if TYPE_CHECKING:
    from ..settings.cluster import Cluster
    from ..stages.stage import Argument, Stage


def run_stage(stage: "Stage", **values: Any) -> None:
    """Run a stage with the arguments `values`, write its figures, and print one line.

    `values` has the command line's arguments by name: those of the stage, `params_file`, the files
    `metrics` and `numbers` (or None) and, if the stage uses it, `cluster`.
    """
    from ..terminal.progress import Progress

    words = (values[item.name] for item in stage.inputs if item.kind == "word")
    label = " ".join([stage.name, *words])
    start_time = time.monotonic()
    with Progress(label, None, unit=""):
        summary = _run_and_record(stage, **values)
    print_done(f"{label}: {summary} ({_format_duration(time.monotonic() - start_time)})")


def _run_and_record(
    stage: "Stage",
    *,
    params_file: Path,
    metrics: Path | None,
    numbers: Path | None,
    cluster: "Cluster | None" = None,
    **values: Any,
) -> str:
    """Run a stage, write its figures, and return its summary."""
    from elmo.io.atomic import check_output_record, write_json
    from elmo.io.records import digest

    from ..cluster import storage
    from ..cluster.job import POINTER_FILE
    from ..settings import params as settings
    from ..terminal.urls import hide_credentials

    _check_overlap(stage, values, (metrics, numbers))
    for file in (metrics, numbers):
        if file is not None:
            check_output_record(file, stage.figures_type)
    params = settings.load(params_file)
    if cluster is not None:
        values["cluster"] = cluster
    url = (storage.storage_url() if cluster is None else cluster.storage).rstrip("/")
    if url and not stage.inputs:
        for folder in storage.delete_lost_pointers(url):
            print_done(f"  {folder}: is missing at {hide_credentials(url)} and is made again")
    folders = {item.name for item in (*stage.inputs, *stage.outputs) if item.kind == "folder"}
    for item in stage.inputs:
        if item.kind == "folder" and values[item.name] is not None:
            values[item.name] = storage.resolve_input(values[item.name], url)
    if stage.work and stage.work.kind == "folder":
        values["work"] = storage.resolve_work(values["work"], url)
    if cluster is not None and stage.has_precision:
        from ..settings.precision import with_chosen_precision
        from ..terminal.progress import log_detail

        params = with_chosen_precision(
            params, stage.name, cluster=cluster, work=values["work"], say=log_detail
        )
    output_name = stage.outputs[0].name
    project_output = values[output_name]
    if output_name in folders:
        inputs = {item.name: str(values[item.name]) for item in stage.inputs}
        stage_digest = digest(
            [stage.name, stage.version, repr(getattr(params, stage.name, None)), inputs]
        )
        values[output_name] = storage.begin_output(
            project_output, url, depends=stage_digest, resumes=stage.resumes_in_output
        )
    if (
        stage.reuses_output
        and project_output != values[output_name]
        and project_output.exists(POINTER_FILE)
    ):
        with suppress(NotFound):  # it is missing, so there is nothing to reuse
            values["previous_output"] = storage.resolve_input(project_output, url)
    figures = stage.run(params=params, **values)
    summary = stage.summary(figures, values)
    storage.publish_output(project_output, values[output_name], url)
    if stage.has_precision:
        from ..settings.precision import forget_precision

        forget_precision(values["work"], stage.name)
    rounded_figures = {  # to six digits, because people read and compare these numbers
        key: float(f"{value:.6g}") if isinstance(value, float) else value
        for key, value in figures.items()
    }
    if numbers is not None:
        write_json(numbers, rounded_figures)
    if metrics is not None:
        names = stage.figure_by_metric or {key: key for key in rounded_figures}
        write_json(
            metrics,
            {name: rounded_figures[key] for name, key in names.items() if key in rounded_figures},
        )
    return summary


def _check_overlap(stage: "Stage", values: dict[str, Any], files: Iterable[Path | None]) -> None:
    """Refuse an output that is, contains or is inside an input or another output.

    The `files` for figures may be inside an input.
    """
    inputs, outputs = _list_paths(stage.inputs, values), _list_paths(stage.outputs, values)
    pairs = [(output, path, "which is read") for output in outputs for path in inputs]
    pairs += [
        (output, other_output, "another output")
        for other_output, output in combinations([*outputs, *filter(None, files)], 2)
    ]
    for output, path, role in pairs:
        output_path, other_path = _real_path(output), _real_path(path)
        if output_path.startswith(other_path) or other_path.startswith(output_path):
            raise ElmoError(f"{output}: overlaps {path}, {role}; choose another")
    for work in _list_paths(filter(None, [stage.work]), values):
        check_outside(work, [*inputs, *outputs])


def check_outside(work: Any, folders: Iterable[Any]) -> None:
    """Raise `ElmoError` if the work folder is one of the other folders or inside one.

    Otherwise work in progress would be written into an input, or deleted with an output.
    """
    if (local := Location.parse(work).local) is not None:
        check_output_parent(local)
    for folder in folders:
        if _real_path(work).startswith(_real_path(folder)):
            raise ElmoError(f"--work {work}: must be outside {folder}; choose another folder")


def _list_paths(arguments: Iterable["Argument"], values: dict[str, Any]) -> list[Any]:
    """Return the files and folders among the arguments, unchanged."""
    paths = [values[item.name] for item in arguments if item.kind != "word"]
    return [item for item in paths if item is not None]


def _real_path(path: Any) -> str:
    """Return a path with links resolved, or a URL, with a slash at the end."""
    local = Location.parse(path).local
    return f"{path if local is None else os.path.realpath(local)}".rstrip("/") + "/"


def _format_duration(seconds: float) -> str:
    minutes, seconds_left = divmod(round(seconds), 60)
    return f"{minutes} min {seconds_left} s" if minutes else f"{seconds:.1f} s"
