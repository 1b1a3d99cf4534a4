"""A model for MLflow to serve: logged with its code and requirements, and tried as it is served."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError

from .. import PACKAGE, tracking

LIBRARY = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec", "scipy")


@dataclass(frozen=True)
class ServedModel:
    """A model for MLflow to serve: the file of its code, its artifacts, and an example.

    `code` is a Python file that MLflow runs, with a `PythonModel`, which gets the folders or files
    `artifacts` by name, and `config` as its model_config. `signature` is MLflow's. `params` go with
    the example; `check` is called with the answer to it, and raises if that is wrong. `tokenizer`
    decides which packages are required. `tags`, `trained_with` (settings) and `scores` are those of
    the logged model `name`.
    """

    name: str
    code: Path
    artifacts: Mapping[str, Path]
    signature: Any
    example: list[Any]
    check: Callable[[Any], None]  # raises where the answer to the example is wrong
    tokenizer: Tokenization
    params: dict[str, Any] | None = None
    config: dict[str, Any] | None = None
    tags: dict[str, Any] | None = None
    trained_with: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)


def log_and_check_model(served: ServedModel, run_id: str) -> str:
    """Log a model to a run, load it as a server does, try its example; return the model's URI.

    If the example fails, MLflow shows the logged model as failed, and `ElmoError` is raised.
    """
    import mlflow.pyfunc
    from mlflow.models import Model

    package = PACKAGE.parent / "elmo"
    run = tracking.mlflow_client().get_run(run_id)
    example = served.example if served.params is None else (served.example, served.params)
    quiet = contextlib.redirect_stderr(io.StringIO())  # it shows bars and where to look
    with (
        warnings.catch_warnings(),
        tracking.silenced("mlflow"),
        quiet,
        _logging_to_experiment(run.info.experiment_id),
        _without_compiling(),
    ):
        warnings.simplefilter("ignore")  # what they may mean is tried below
        info = Model.log(
            artifact_path=None,
            name=served.name,
            flavor=mlflow.pyfunc,
            run_id=run_id,
            tags=served.tags,
            python_model=str(served.code),
            artifacts={name: str(path.absolute()) for name, path in served.artifacts.items()},
            signature=served.signature,
            input_example=example,
            pip_requirements=requirements(served.tokenizer),
            code_paths=[str(package)],
            model_config=served.config,
            params=tracking.flat_params(served.trained_with),
        )
        try:
            _try(info.model_uri, served)
        except Exception as error:
            with contextlib.suppress(Exception):
                tracking.mlflow_client().finalize_logged_model(info.model_id, "FAILED")
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ElmoError(reason) from error
    for name, score in served.scores.items():
        tracking.mlflow_client().log_metric(run_id, name, score, model_id=info.model_id)
    return str(info.model_uri)


@contextmanager
def _logging_to_experiment(experiment_id: str) -> Iterator[None]:
    """Models that MLflow logs go to this experiment: it asks the environment, not the run."""
    names = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
    old_values = {name: os.environ.pop(name, None) for name in names}
    os.environ["MLFLOW_EXPERIMENT_ID"] = experiment_id
    try:
        yield
    finally:
        del os.environ["MLFLOW_EXPERIMENT_ID"]
        os.environ.update({name: value for name, value in old_values.items() if value is not None})


@contextmanager
def _without_compiling() -> Iterator[None]:
    """Load models without compiling their cell: trying one example does not repay it."""
    from elmo.nn.cell import cell_functions_for

    old_value = os.environ.get("ELMO_COMPILE")
    os.environ["ELMO_COMPILE"] = "0"
    cell_functions_for.cache_clear()
    try:
        yield
    finally:
        os.environ.pop("ELMO_COMPILE")
        if old_value is not None:
            os.environ["ELMO_COMPILE"] = old_value
        cell_functions_for.cache_clear()


def _try(model_uri: str, served: ServedModel) -> None:
    """Load a logged model as a server does, and look at what it answers."""
    import mlflow
    from mlflow.pyfunc.scoring_server import predictions_to_json

    paths = list(sys.path)
    try:
        model = mlflow.pyfunc.load_model(model_uri)
        answer = model.predict(served.example, params=served.params)
    finally:
        sys.path[:] = paths  # the model's own copy of the library stays out
    served.check(answer)
    predictions_to_json(answer, io.StringIO())


def requirements(tokenizer: Tokenization) -> list[str]:
    """Return the pip requirements for serving a model, at the installed versions.

    The tokenizer's packages have the versions that the model records.
    """
    installed = {name: version(name).split("+")[0] for name in (*LIBRARY, "mlflow")}
    cutting = tokenizer.libraries | tokenizer.splitter
    return [f"{name}=={number}" for name, number in (installed | cutting).items()]
