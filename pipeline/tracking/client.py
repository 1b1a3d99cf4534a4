"""The connection to MLflow: its address, client and experiment, and its errors in one line."""

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError, first_line

from ..terminal.progress import say
from ..terminal.urls import hide_credentials
from .database import check_database, database_path, make_database

EXPERIMENT = "elmo"
FOLDER_TAG = "elmo.home"  # an experiment's tag: the folder that has its `mlruns`
_DEFAULT_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}
_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # its page shows runs, not traces
_CLIENT_BY_URI: dict[str, Any] = {}
_UNREACHABLE = re.compile(
    "Connection refused|Connection aborted|Connection reset|timed out|No route to host|"
    "NameResolutionError|Name or service not known"
)


def mlflow_client() -> Any:
    """Return MLflow's client for the tracking URI.

    The first call creates a missing database; raises `ElmoError` if it can't be used.
    """
    for name, value in _DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("urllib3.connectionpool", "mlflow.utils.databricks_utils"):  # reported below
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # and these tracebacks
    with silence_logger("alembic"), silence_logger("mlflow"):
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(_default_uri(project_root()))
        uri = uri_with_login()
        if uri not in _CLIENT_BY_URI:
            _prepare_database(uri)
            _CLIENT_BY_URI[uri] = mlflow.MlflowClient()
        return _CLIENT_BY_URI[uri]


def configured_uri(folder: Path | None = None) -> str:
    """Return the tracking URI of a project's runs, with its login, without setting up MLflow."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _default_uri(folder or project_root())


def _default_uri(folder: Path) -> str:
    """Return the address of `mlflow.db` in the project's folder."""
    if signs := [sign for sign in "%?" if sign in str(folder)]:
        raise ElmoError(
            f"{folder}: MLflow can't keep its database in a folder with {signs[0]} in its path; "
            "rename the folder, or set MLFLOW_TRACKING_URI"
        )
    return f"sqlite:///{folder / 'mlflow.db'}"


def check_mlflow() -> None:
    """Raise `ElmoError`, in one line and within seconds, if MLflow can't be used.

    A missing database is created. Stages call this before their work.
    """
    with catch_mlflow_errors():
        client = mlflow_client()
        _prepare_database(uri_with_login())
        client.search_experiments(max_results=1)


def _prepare_database(uri: str) -> None:
    if (file := database_path(uri)) is not None:
        check_database(file)
        with silence_logger("mlflow"):  # importing mlflow has reset the level
            make_database(file)


@contextmanager
def catch_mlflow_errors() -> Iterator[None]:
    """Turn any exception of MLflow, its server or its database in the block into an `ElmoError`.

    Errors about local files pass unchanged.
    """
    try:
        yield
    except (ElmoError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.filename:
            raise  # a local file, not an answer of MLflow
        raise ElmoError(explain_mlflow_error(error)) from error


def explain_mlflow_error(error: BaseException) -> str:
    """Return a message of one line about an exception of MLflow."""
    if match := _UNREACHABLE.search(str(error)):
        return (
            f"MLflow at {public_uri()} can't be reached ({match[0].lower()}); start it, or set "
            "MLFLOW_TRACKING_URI"
        )
    return f"MLflow at {public_uri()}: {hide_credentials(first_line(error))}"


def uri_with_login() -> str:
    """Return the tracking URI, with its login."""
    import mlflow

    return str(mlflow.get_tracking_uri())


def public_uri() -> str:
    """Return the tracking URI without its login, for messages."""
    return hide_credentials(uri_with_login())


def experiment_id(client: Any, stage: str = "") -> str:
    """Return the id of the MLflow experiment for a stage's runs; create it if necessary.

    The stage `tasks` has a separate experiment, because it makes many runs.
    """
    if os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    name += "-tasks" * (stage == "tasks")
    experiment = client.get_experiment_by_name(name)
    if experiment is not None and (old_path := folder_before_move(experiment)):
        client.rename_experiment(experiment.experiment_id, f"{name} of {old_path}")
        say(f"the project has moved from {old_path}, where MLflow has its earlier runs and models")
        say("to register the model here, run: elmo run register")
        experiment = None
    if experiment is not None:
        return str(experiment.experiment_id)
    file = database_path(uri_with_login())
    artifact_root = file.absolute().parent / "mlruns" if file else None
    from mlflow.exceptions import MlflowException

    try:
        if artifact_root is None:
            return str(client.create_experiment(name, tags=_TAGS))
        tags = _TAGS | {FOLDER_TAG: str(artifact_root.parent)}
        return str(client.create_experiment(name, artifact_root.as_uri(), tags))
    except MlflowException:  # another process was first
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def folder_before_move(experiment: Any) -> str:
    """Return the folder in which the project was when the experiment was created, if it has been
    moved or copied since; else "".

    MLflow keeps an absolute path for an experiment's files, so new files would go to that folder.
    """
    old_path, file = experiment.tags.get(FOLDER_TAG, ""), database_path(uri_with_login())
    if not old_path or file is None or old_path == str(file.absolute().parent):
        return ""
    with contextlib.suppress(OSError):  # the same folder may have two paths
        if os.path.samefile(Path(old_path, file.name), file):
            return ""
    return str(old_path)


@contextmanager
def silence_logger(name: str, *, level: int = logging.ERROR) -> Iterator[None]:
    """Hide messages below a level of the logger `name` in the block."""
    logger = logging.getLogger(name)
    previous_level = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(previous_level)


def project_root() -> Path:
    """Return the project's folder: DVC_ROOT while a stage runs, else the current one."""
    return Path(os.environ.get("DVC_ROOT", ".")).absolute()
