"""What the commands of all stages do: read the params, run, write the figures, print a line."""

import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import METRICS, PARAMS, SET, say_done, values_set

if TYPE_CHECKING:
    from ..cluster import Cluster
    from ..params import Params


Run = Callable[..., None]  # `run_stage` for the files that a command was given


def stage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a stage's command the options of all stages, and hand it `run` to do its work with."""

    @wraps(command)
    def with_options(params_file: Path, metrics: Path | None, **given: Any) -> None:
        command(run=partial(run_stage, params_file=params_file, metrics=metrics), **given)

    return PARAMS(SET(METRICS(with_options)))


def run_stage(
    name: str,
    work: Callable[["Params"], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
    *,
    params_file: Path,
    metrics: Path | None,
    cluster: "Cluster | None" = None,
) -> None:
    """Run a stage, write its figures, and print what it did and how long it took."""
    from elmo.files import check_file, write_json

    from .. import params as settings
    from .. import results, storage

    began = time.monotonic()
    if metrics is not None:
        check_file(metrics, ours=b"{")
    params = settings.load(params_file, values_set())
    results.check(name.split()[0], params.results, params_file)
    if cluster is not None:
        from ..precision import settled_params

        params = settled_params(params, name, gpu=cluster.gpu, say=partial(click.echo, err=True))
    figures = work(params)
    storage.leave_manifests(click.get_current_context().params["out"])
    if metrics is not None:
        rounded = {key: _rounded(value) for key, value in figures.items()}
        write_json(metrics, rounded)
    seconds = time.monotonic() - began
    say_done(f"{name}: {describe(figures)} ({_duration(seconds)})")


def _rounded(value: Any) -> Any:
    """Six digits: figures are read and compared by people."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def human_size(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
