"""The code that all stages' commands share: read params, run, write the numbers, print a line."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.errors import ElmoError, NotFound
from elmo.io.location import Location

from .options import print_done, set_options

if TYPE_CHECKING:
    from ..settings.cluster import Cluster
    from ..stages.stage import Argument, Stage


def run_stage(stage: "Stage", **given: Any) -> None:
    """Run a stage with the arguments `given`, write its numbers and metrics, and print its result.

    They are by name what the command line gave: the stage's arguments, `params_file`, the files
    `metrics` and `numbers` or None, and `cluster` where the stage has one. Lines that explain a
    result go to a log file in the stage's work folder.
    """
    from ..terminal.progress import Progress, detail_log

    words = [stage.name, *(given[one.name] for one in stage.inputs if one.kind == "word")]
    label = " ".join(words)
    began = time.monotonic()
    with detail_log(_log_of(given.get("work"), words), label), Progress(label, None, unit=""):
        summary = _run(stage, **given)
    print_done(f"{label}: {summary} ({_duration(time.monotonic() - began)})")


def _log_of(work: Any, words: list[str]) -> Path | None:
    """The log file of a stage whose work lies on this machine."""
    local = None if work is None else Location.of(work).local
    return local / f"{'-'.join(words)}.log" if local else None


def _run(
    stage: "Stage",
    *,
    params_file: Path,
    metrics: Path | None,
    numbers: Path | None,
    cluster: "Cluster | None" = None,
    **given: Any,
) -> str:
    """Run a stage, write its numbers and metrics, and return what it did in words."""
    from elmo.io.atomic import write_json
    from elmo.io.outputs import check_record
    from elmo.io.records import digest

    from ..cluster import storage
    from ..cluster.job import STORED
    from ..settings import params as settings
    from ..terminal.urls import without_credentials

    _check_work(given.get("work"))
    _check_apart(stage, given, (metrics, numbers))
    for file in (metrics, numbers):
        if file is not None:
            check_record(file, stage.numbers)
    params = settings.load(params_file, set_options())
    if cluster is not None:
        given["cluster"] = cluster
    url = (storage.root() if cluster is None else cluster.storage).rstrip("/")
    if url and not stage.inputs:
        for lost in storage.forget_lost(url):
            print_done(f"  {lost}: is not at {without_credentials(url)} any more; it is made again")
    folders = {one.name for one in (*stage.inputs, *stage.outputs) if one.kind == "folder"}
    read = [one.name for one in stage.inputs if one.name in folders]
    given = storage.resolve_inputs(given, read, url)
    if stage.work:
        given["work"] = storage.resolve_work(given["work"], url)
    settles = cluster is not None and stage.settles_precision and stage.settles_precision(given)
    if cluster is not None and settles:
        from ..settings.precision import with_chosen_precision
        from ..terminal.progress import log_detail

        say = partial(click.echo, err=True)
        params = with_chosen_precision(
            params, stage.name, cluster=cluster, work=given["work"], say=say, note=log_detail
        )
    output = stage.outputs[0].name
    named = given[output]
    if output in folders:
        inputs = {one.name: str(given[one.name]) for one in stage.inputs}
        settings_of = repr(getattr(params, stage.name, None))
        depends = digest([stage.name, stage.version, settings_of, inputs])
        resumes = stage.resumes_in_output
        given[output] = storage.begin(named, url, depends=depends, resumes=resumes)
    if stage.takes_over and named != given[output] and named.exists(STORED):
        with suppress(NotFound):  # it is lost, so there is nothing to take over
            given["earlier"] = storage.read_from(named, url)
    made = stage.run(params=params, **given)
    summary = stage.summary(made, given)
    storage.publish(named, given[output], url)
    if settles:
        from ..settings.precision import forget_precision

        forget_precision(given["work"], stage.name)
    rounded = {key: _rounded(value) for key, value in made.items()}
    if numbers is not None:
        write_json(numbers, rounded)
    if metrics is not None:
        names = stage.metrics or {key: key for key in rounded}
        write_json(metrics, {name: rounded[key] for name, key in names.items() if key in rounded})
    return summary


def _check_work(work: Any) -> None:
    folder = None if work is None else Location.of(work).local
    if folder and folder.exists() and not folder.is_dir():
        raise ElmoError(f"{folder}: is no folder to keep work in; pass another as --work")


def _check_apart(stage: "Stage", given: dict[str, Any], numbers: Iterable[Path | None]) -> None:
    """Refuse an output that is, holds or lies in an input or another output.

    Files of numbers may go beside what was read.
    """
    read, written = _paths(stage.inputs, given), _paths(stage.outputs, given)
    apart = [(output, other, "which is read") for output in written for other in read]
    several = [*written, *filter(None, numbers)]
    apart += [(later, earlier, "another output") for earlier, later in combinations(several, 2)]
    for output, other, what in apart:
        one, two = _real(output), _real(other)
        if one.startswith(two) or two.startswith(one):
            where = "is" if one == two else "lies in" if one.startswith(two) else "holds"
            raise ElmoError(f"{output}: {where} {other}, {what}; choose another")
    for work in _paths(filter(None, [stage.work]), given):
        check_outside(work, [*read, *written])


def check_outside(work: Any, others: Iterable[Any]) -> None:
    """Raise `ElmoError` if the work folder is, or lies in, one of the other folders.

    Work in progress would be written into an input, or deleted with an output.
    """
    for other in others:
        if _real(work).startswith(_real(other)):
            where = "is" if _real(work) == _real(other) else "lies in"
            raise ElmoError(f"--work {work}: {where} {other}; choose another folder")


def _paths(arguments: Iterable["Argument"], given: dict[str, Any]) -> list[Any]:
    """The files and folders among the arguments, as they were given."""
    named = [given[one.name] for one in arguments if one.kind != "word"]
    return [one for one in named if one is not None]


def _real(path: Any) -> str:
    """A path without links, or a URL, with a slash at its end."""
    local = Location.of(path).local
    return f"{path if local is None else os.path.realpath(local)}".rstrip("/") + "/"


def _rounded(value: Any) -> Any:
    """Six digits: numbers are read and compared by people."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
