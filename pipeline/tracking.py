"""The one file that talks to MLflow: runs with their params, curves and datasets, and the registry.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder.
"""

import contextlib
import io
import logging
import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmo.files import digest, read_json, write_json

EXPERIMENT = "elmo"


class Run:
    """An MLflow run that may be logged to from any process that knows its id."""

    def __init__(self, run_id: str) -> None:
        self.client, self.run_id = _client(), run_id

    def metrics(self, figures: dict[str, float], *, step: int = 0) -> None:
        """Log figures; those that are not finite are left out."""
        from math import isfinite

        from mlflow.entities import Metric

        kept = {name: float(value) for name, value in figures.items() if isfinite(value)}
        now = _now()
        entries = [Metric(name, value, now, step) for name, value in kept.items()]
        self.client.log_batch(self.run_id, metrics=entries)

    def artifact(self, path: Path) -> None:
        """Log a file or a folder."""
        log = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        log(self.run_id, str(path))

    def tag(self, name: str, value: str) -> None:
        """Set a tag."""
        self.client.set_tag(self.run_id, name, value)


@contextmanager
def run(
    stage: str, params: Any, *, inputs: dict[str, str], folder: Path | None = None
) -> Iterator[Run]:
    """Open a run of a stage; `inputs` are digests of what it reads, by name.

    With `folder`, where the work in progress is kept, the run that began there goes on.
    """
    kept = folder / "mlflow.json" if folder else None
    client = _client()
    run_id = read_json(kept)["run_id"] if kept and kept.exists() else None
    if run_id is None or not _exists(client, run_id):
        run_id = _begin(client, stage, params, inputs)
        if kept:
            write_json(kept, {"run_id": run_id})
    client.update_run(run_id, status="RUNNING")
    try:
        yield Run(run_id)
    except KeyboardInterrupt:
        client.set_terminated(run_id, "KILLED")
        raise
    except BaseException:
        client.set_terminated(run_id, "FAILED")
        raise
    client.set_terminated(run_id, "FINISHED")


def _begin(client: Any, stage: str, params: Any, inputs: dict[str, str]) -> str:
    from mlflow.entities import Dataset as Entry
    from mlflow.entities import DatasetInput, InputTag

    tags = {"stage": stage, **{f"digest.{name}": value for name, value in inputs.items()}}
    tags |= {f"dvc.{n}": os.environ[n] for n in ("DVC_STAGE", "DVC_EXP_NAME") if n in os.environ}
    run_id = client.create_run(_experiment(client), run_name=stage, tags=tags).info.run_id
    flat = _flat(asdict(params))
    from mlflow.entities import Param

    client.log_batch(run_id, params=[Param(name, str(value)) for name, value in flat.items()])
    datasets = [
        DatasetInput(
            Entry(name, value[:36], "local", f'{{"uri": "{name}"}}'),
            [InputTag("mlflow.data.context", name)],
        )
        for name, value in inputs.items()
    ]
    client.log_inputs(run_id, datasets)
    client.log_dict(run_id, _environment(), "environment.json")
    return run_id


def register(
    folder: Path, *, name: str, alias: str, tags: dict[str, str], log: Run
) -> tuple[str, bool]:
    """Register a model folder, once for each content; return its version and whether it is new."""
    import mlflow
    from mlflow.exceptions import MlflowException

    client = _client()
    content = tags["model_digest"]
    try:
        found = client.search_model_versions(f"name = '{name}' and tags.model_digest = '{content}'")
    except MlflowException:
        found = []
    if found:
        version = max(found, key=lambda one: int(one.version)).version
    else:
        version = _log_model(mlflow, folder, name, log)
    for key, value in tags.items():
        client.set_model_version_tag(name, version, key, value)
    client.set_registered_model_alias(name, alias, version)
    return str(version), not found


def _log_model(mlflow: Any, folder: Path, name: str, log: Run) -> str:
    here = Path(__file__).resolve().parents[1]
    quiet = contextlib.redirect_stderr(io.StringIO())  # it prints what it registered
    with warnings.catch_warnings(), _silent("mlflow"), quiet:
        warnings.simplefilter("ignore")
        from pipeline import served

        with mlflow.start_run(run_id=log.run_id):
            info = mlflow.pyfunc.log_model(
                name=name,
                python_model=str(Path(served.__file__)),
                artifacts={"model": str(folder.absolute())},
                input_example=(served.EXAMPLE, served.PARAMS),
                registered_model_name=name,
                pip_requirements=_requirements(),
                code_paths=[str(here / "elmo")],
            )
    return str(info.registered_model_version)


def versions(name: str) -> list[dict[str, Any]]:
    """The versions of a registered model with their tags, newest first."""
    found = _client().search_model_versions(f"name = '{name}'")
    rows = [{"version": int(v.version), "run_id": v.run_id, **v.tags} for v in found]
    return sorted(rows, key=lambda row: -row["version"])


def runs(stage: str) -> list[dict[str, Any]]:
    """The runs of a stage with their tags, newest first."""
    client = _client()
    found = client.search_runs([_experiment(client)], f"tags.stage = '{stage}'")
    return [{"run_id": run.info.run_id, **run.data.tags} for run in found]


def _requirements() -> list[str]:
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "safetensors", "mlflow")
    return [f"{name}=={version(name).split('+')[0]}" for name in names]


def _environment() -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "ray", "dvc", "mlflow")
    packages = {name: version(name) for name in names}
    return {"python": platform.python_version(), "system": platform.system(), "packages": packages}


def _client() -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    with _silent("alembic"), _silent("mlflow"):
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            root = Path(os.environ.get("DVC_ROOT", ".")).absolute()
            mlflow.set_tracking_uri(f"sqlite:///{root / 'mlflow.db'}")
        _make_database(mlflow.get_tracking_uri())
        return mlflow.MlflowClient()


def _make_database(uri: str) -> None:
    """Make an SQLite database whole or not at all.

    MLflow makes its tables one after another, and is stuck for good with a database whose making
    was killed half-way.
    """
    database = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or database.exists():
        return
    import mlflow

    database.parent.mkdir(parents=True, exist_ok=True)
    beside = database.with_name(f".{database.name}.{uuid.uuid4().hex[:8]}")
    try:
        with _silent("mlflow"):
            mlflow.MlflowClient(f"sqlite:///{beside}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(beside, database)
    finally:
        beside.unlink(missing_ok=True)


def tracking_uri() -> str:
    """Where runs go."""
    import mlflow

    _client()
    return str(mlflow.get_tracking_uri())


def _experiment(client: Any) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    uri = tracking_uri()
    local = uri.startswith("sqlite:///")
    root = Path(uri.removeprefix("sqlite:///")).parent / "mlruns" if local else None
    return str(client.create_experiment(EXPERIMENT, root.as_uri() if root else None))


def _exists(client: Any, run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        client.get_run(run_id)
    except MlflowException:
        return False
    return True


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, one in value.items():
        found |= _flat(one, f"{prefix}{key}.") if isinstance(one, dict) else {prefix + key: one}
    return found


def _now() -> int:
    import time

    return int(time.time() * 1000)


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """A library's progress lines off; its warnings and errors stay."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def fingerprint(stage: str, params: Any, inputs: dict[str, str]) -> str:
    """What a stage's work in progress is keyed by: its params and its inputs."""
    return digest({"stage": stage, "params": asdict(params), "inputs": inputs})[:16]
