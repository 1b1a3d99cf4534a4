"""Settings of the run, not its result: workers, cores, GPUs, how often a checkpoint.

It is no part of `params.yaml`: a file `cluster.yaml` that git ignores and environment variables set
it, the later before the earlier, and each stage prints what is in force. Addresses are in the
variables of the engines: RAY_ADDRESS and MLFLOW_TRACKING_URI.
"""

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args

from msgspec import Meta

from elmo.errors import BadSettings
from elmo.settings import check_fields, check_value, field_types

from . import strict_yaml

Minutes = Annotated[float, Meta(gt=0, le=100_000)]
Url = Annotated[
    str,
    Meta(
        pattern=r"\A([A-Za-z][A-Za-z0-9+.-]*:///?[^\s\x00/][^\s\x00]{0,1000})?\Z",
        description="a URL such as s3://bucket/elmo, or empty",
    ),
]


@dataclass(frozen=True)
class Cluster:
    """The settings of how the work runs (workers, cores, storage). They change no result."""

    workers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Training processes; 0: this process."""
    cpus: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Cores per worker. Do not set more than are free, because all threads wait for the slowest."""
    gpu: bool = False
    """Whether each worker and actor has a GPU."""
    actors: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Processes that tokenize, count and embed, with one core each; 0: as many as fit, or this
    process if the work takes seconds; 1: this process, unless an address is set."""
    checkpoint_minutes: Minutes = 10.0
    """Minutes between checkpoints."""
    keep: Annotated[int, Meta(ge=1, le=1000)] = 2
    """The number of recent checkpoints to keep, besides the best one."""
    wait_minutes: Minutes = 10.0
    """Minutes to wait for cores and GPUs that are not free before giving up."""
    restarts: Annotated[int, Meta(ge=0, le=10_000)] = 3
    """How often training restarts after it loses workers, counted anew after each checkpoint."""
    storage: Url = ""
    """The URL of a folder for data and models, such as s3://bucket/elmo, if machines share no
    folder; empty: the project's folder."""
    max_workers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """The maximum number of workers when nodes come and go, if above `workers`; 0: exactly
    `workers`."""

    def __post_init__(self) -> None:
        """Refuse what is out of its range."""
        check_fields(self)
        if self.storage.startswith("memory:"):
            raise BadSettings(
                f"storage {self.storage}: is lost when this process ends; use an object store, "
                "such as s3://bucket/elmo"
            )
        if self.max_workers and not 1 <= self.workers <= self.max_workers:
            raise BadSettings(
                f"max_workers {self.max_workers}: must be 0 (train with exactly `workers`), or "
                f"workers, now {self.workers}, must be from 1 to that"
            )


def load(path: Path) -> tuple[Cluster, str]:
    """Return the settings in force, and a line that names each that is no default and its source.

    An environment variable goes before the file at `path`, which need not exist.
    """
    path = _in_project(path)
    from_file = strict_yaml.read_settings(path, Cluster) if os.path.lexists(path) else Cluster()
    values: dict[str, Any] = {}
    changes = []
    for field in fields(Cluster):
        name, value, source = field.name, getattr(from_file, field.name), str(path)
        variable = f"ELMO_{name.upper()}"
        if text := os.environ.get(variable):
            value, source = _parse_variable(variable, text, field_types(Cluster)[name]), variable
        values[name] = value
        if value != field.default:
            changes.append(f"{name} {_public_value(value)} ({source})")
    cluster = Cluster(**values)
    if not changes:
        return cluster, "cluster: the defaults"
    return cluster, f"cluster: {', '.join(changes)}; the rest by default"


def _in_project(path: Path) -> Path:
    """The path in the user's project, where DVC runs an experiment in a copy of it: the copy lacks
    what git ignores."""
    if not os.path.lexists(path):
        project, copy_path, _ = os.fspath(path.absolute()).partition("/.dvc/tmp/exps/")
        if copy_path and (project_file := Path(project) / path.name).exists():
            return project_file
    return path


def variables(cluster: Cluster) -> dict[str, str]:
    """Return the environment variables that give another machine these settings; defaults are
    left out."""
    values = {field.name: getattr(cluster, field.name) for field in fields(Cluster)}
    return {
        f"ELMO_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value != getattr(Cluster, name)
    }


def _parse_variable(variable: str, text: str, kind: Any) -> Any:
    """The value of a variable."""
    if kind is bool:
        words = {"true": True, "1": True, "false": False, "0": False}
        return check_value(variable, words.get(text.lower(), text), kind)
    if get_args(kind)[0] is str:
        return check_value(variable, text, kind)
    try:
        number = float(text)
    except ValueError:
        return check_value(variable, text, kind)
    return check_value(variable, int(number) if number.is_integer() else number, kind)


def _public_value(value: Any) -> str:
    """A value for the line; passwords in addresses are left out."""
    return "yes" if value is True else re.sub(r"//[^/@]*@", "//…@", str(value))
