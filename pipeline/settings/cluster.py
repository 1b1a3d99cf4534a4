"""Settings that change how a stage runs, not its result: workers, cores, GPUs, checkpoints.

They are not in `params.yaml`, but in the untracked file `cluster.yaml` and in environment
variables, which override the file. Each stage prints the values that it uses. The addresses of Ray
and MLflow are in the variables RAY_ADDRESS and MLFLOW_TRACKING_URI.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from elmo.errors import BadSettings
from elmo.settings import check_fields, field_types

from ..terminal.urls import hide_credentials
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
    process if the work takes seconds; 1: this process, unless RAY_ADDRESS is set."""
    checkpoint_minutes: Minutes = 10.0
    """Minutes between checkpoints."""
    keep: Annotated[int, Meta(ge=1, le=1000)] = 2
    """The number of recent checkpoints to keep, besides the best one."""
    wait_minutes: Minutes = 10.0
    """Minutes to wait for cores and GPUs that are not free before giving up."""
    restarts: Annotated[int, Meta(ge=0, le=10_000)] = 3
    """The maximum number of restarts after lost workers without a new checkpoint."""
    storage: Url = ""
    """The URL of a folder for data and models, such as s3://bucket/elmo, if machines share no
    folder; empty: the project's folder."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_fields(self)
        if self.storage.startswith("memory:"):
            raise BadSettings(
                f"storage {self.storage}: is lost when this process ends; use an object store, "
                "such as s3://bucket/elmo"
            )


def load(path: Path) -> tuple[Cluster, str]:
    """Return the settings, and a line with the values that are not defaults and their sources.

    Environment variables override the file at `path`, which may be missing.
    """
    path = _find_in_project(path)
    settings = strict_yaml.read_settings(path, Cluster) if os.path.lexists(path) else Cluster()
    values: dict[str, Any] = {}
    changes = []
    for field in fields(Cluster):
        name, value, source = field.name, getattr(settings, field.name), str(path)
        variable = f"ELMO_{name.upper()}"
        if text := os.environ.get(variable):
            if name == "gpu":
                text = {"1": "true", "0": "false"}.get(text, text)
            value = strict_yaml.parse_text(text)
            value = strict_yaml.check_scalar(variable, value, field_types(Cluster)[name])
            source = variable
        values[name] = value
        if value != field.default:
            changes.append(f"{name} {hide_credentials(str(value))} ({source})")
    cluster = Cluster(**values)
    if not changes:
        return cluster, "cluster: the defaults"
    return cluster, f"cluster: {', '.join(changes)}; defaults otherwise"


def _find_in_project(path: Path) -> Path:
    """If this is DVC's copy of the project for an experiment, return the path in the user's
    project, because the copy has no files that git ignores."""
    if not os.path.lexists(path):
        project, copy_path, _ = os.fspath(path.absolute()).partition("/.dvc/tmp/exps/")
        if copy_path and (project_file := Path(project) / path.name).exists():
            return project_file
    return path


def to_environment(cluster: Cluster) -> dict[str, str]:
    """Return the environment variables that set these settings elsewhere, except defaults."""
    values = {field.name: getattr(cluster, field.name) for field in fields(Cluster)}
    return {
        f"ELMO_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value != getattr(Cluster, name)
    }
