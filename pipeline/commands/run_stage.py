"""What the commands of all stages do: read the params, run, write the figures, print a line."""

import os
import time
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elmo.errors import ElmoError

from .options import (
    FIGURES,
    METRICS,
    PARAMS,
    SET,
    say_done,
    values_set,
)

if TYPE_CHECKING:
    from ..settings.cluster import Cluster
    from ..settings.params import Params


RunStage = Callable[..., None]  # `run_stage` for the files that a command was given
# What `--figures` holds: numbers by name, or by arm and name.
FIGURES_KIND = dict[str, float | None | dict[str, float | None]]
# What `--metrics` holds, for people to compare: each column of `dvc metrics show`, and its figure.
METRICS_OF = {
    "tokenize": {"tokens": "tokens"},
    "vocab": {"words": "words", "coverage": "heldout_coverage"},
    "pretrain": {"perplexity": "heldout_perplexity", "below_unigram": "times_below_unigram"},
    "finetune": {"perplexity": "task_perplexity_after", "gain": "task_gain"},
    "features": {"tokens": "tokens", "bytes": "bytes"},
    "tasks": {"score": "score", "over_baseline": "gain"},
}
_FIGURES = ("metrics", "figures")
_OUTPUTS = ("out", "packages", "curves", "curve", "picture", *_FIGURES)


def stage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a stage's command the options of all stages, and hand it `run` to do its work with."""

    @wraps(command)
    def with_options(
        params_file: Path, metrics: Path | None, figures: Path | None, **given: Any
    ) -> None:
        command(
            run=partial(
                run_stage, params_file=params_file, metrics_file=metrics, figures_file=figures
            ),
            **given,
        )

    return PARAMS(SET(METRICS(FIGURES(with_options))))


def run_stage(
    name: str,
    work: Callable[["Params"], dict[str, Any]],
    describe: Callable[[dict[str, Any]], str],
    *,
    params_file: Path,
    metrics_file: Path | None,
    figures_file: Path | None,
    cluster: "Cluster | None" = None,
    figures_kind: Any = FIGURES_KIND,
) -> None:
    """Run a stage, write its figures and metrics, print what it did and how long it took."""
    from elmo.io.atomic import check_record, write_json

    from ..cluster import storage
    from ..settings import params as settings
    from ..settings import results

    began = time.monotonic()
    given = click.get_current_context().params
    if isinstance(runs := given.get("runs"), Path) and runs.exists() and not runs.is_dir():
        raise ElmoError(f"{runs}: is no folder to keep work in; name another with --runs")
    _check_apart(name, given)
    for file in (metrics_file, figures_file):
        if file is not None:
            check_record(file, figures_kind)
    params = settings.load(params_file, values_set())
    stage = name.split()[0]
    results.check(stage, params.results, params_file)
    if cluster is not None:
        from ..settings.precision import settled_params

        params = settled_params(params, name, gpu=cluster.gpu, say=partial(click.echo, err=True))
    storage.check_left(given["out"])
    figures = work(params)
    storage.leave_manifests(given["out"])
    rounded = {key: _rounded(value) for key, value in figures.items()}
    if figures_file is not None:
        write_json(figures_file, rounded)
    if metrics_file is not None:
        names = METRICS_OF.get(stage, {key: key for key in rounded})
        write_json(
            metrics_file, {name: rounded[key] for name, key in names.items() if key in rounded}
        )
    seconds = time.monotonic() - began
    say_done(f"{name}: {describe(figures)} ({_duration(seconds)})")


def _check_apart(name: str, given: dict[str, Any]) -> None:
    """Refuse an output that is, holds or lies in an input or another output.

    Figures may go beside what was read.
    """
    paths = {
        key: value
        for key, value in given.items()
        if isinstance(value, Path) or (isinstance(value, str) and "://" in value)
    }
    named = _OUTPUTS if name != "report" else ("out", *_FIGURES)  # a report reads the curves
    outputs = [key for key in named if key in paths]
    for k, output in enumerate(outputs):
        inputs = [key for key in paths if key not in (*outputs, "runs")]
        for other in outputs[:k] + (inputs if output not in _FIGURES else []):
            one, two = _real(paths[output]), _real(paths[other])
            if one.startswith(two) or two.startswith(one):
                where = "is" if one == two else "lies in" if one.startswith(two) else "holds"
                what = "another output" if other in outputs else "which is read"
                raise ElmoError(f"{paths[output]}: {where} {paths[other]}, {what}; name another")


def _real(path: Any) -> str:
    """A path without links, or a URL, with a slash at its end."""
    return f"{path if '://' in str(path) else os.path.realpath(path)}".rstrip("/") + "/"


def _rounded(value: Any) -> Any:
    """Six digits: figures are read and compared by people."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
