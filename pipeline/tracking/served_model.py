"""Logs a model for MLflow to serve, with its code and requirements, and tests it like a server."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from elmo.data.tokenizer import NO_TOKENIZER, Tokenization
from elmo.errors import ElmoError

from .. import PACKAGE
from .client import mlflow_client, silence_logger
from .runs import flat_params

LIBRARIES = ("torch", "numpy", "pyarrow", "safetensors", "fsspec", "msgspec", "scipy")


def log_model(
    folder: Path,
    run_id: str,
    *,
    digest: str,
    trained_with: Mapping[str, Any],
    scores: Mapping[str, float],
) -> str:
    """Log a model folder to a run, load it as a server does, and embed an example; return its URI.

    The logged model has the tag "model_digest" `digest`, and MLflow shows the settings
    `trained_with` and the `scores` beside it. If it can't embed the example, MLflow shows it as
    failed, and `ElmoError` is raised.
    """
    import mlflow.pyfunc
    from mlflow.models import Model

    from elmo.model.folder import load_model

    from . import pyfunc

    tokenizer = load_model(folder).tokenizer
    example = pyfunc.INPUT_EXAMPLE[1:] if tokenizer == NO_TOKENIZER else pyfunc.INPUT_EXAMPLE
    run = mlflow_client().get_run(run_id)
    hidden_stderr = contextlib.redirect_stderr(io.StringIO())  # progress bars and links
    with (
        warnings.catch_warnings(),
        silence_logger("mlflow"),
        hidden_stderr,
        _logging_to_experiment(run.info.experiment_id),
    ):
        warnings.simplefilter("ignore")  # the model is tested below
        info = Model.log(
            artifact_path=None,
            name="elmo",
            flavor=mlflow.pyfunc,
            run_id=run_id,
            tags={"model_digest": digest},
            python_model=str(Path(pyfunc.__file__)),
            artifacts={"model": str(folder.absolute())},
            signature=pyfunc.make_signature(),
            input_example=(example, pyfunc.DEFAULT_PARAMS),
            pip_requirements=requirements(tokenizer),
            code_paths=[str(PACKAGE.parent / "elmo")],
            params=flat_params(trained_with),
        )
        try:
            _check_answers(info.model_uri, example)
        except Exception as error:
            with contextlib.suppress(Exception):
                mlflow_client().finalize_logged_model(info.model_id, "FAILED")
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ElmoError(
                f"{folder}: MLflow can't serve this model ({reason}); it is not registered"
            ) from error
    for name, score in scores.items():
        mlflow_client().log_metric(run_id, name, score, model_id=info.model_id)
    return str(info.model_uri)


@contextmanager
def _logging_to_experiment(experiment_id: str) -> Iterator[None]:
    """Make MLflow log models to this experiment, which it reads from the environment."""
    names = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")
    old_values = {name: os.environ.pop(name, None) for name in names}
    os.environ["MLFLOW_EXPERIMENT_ID"] = experiment_id
    try:
        yield
    finally:
        del os.environ["MLFLOW_EXPERIMENT_ID"]
        os.environ.update({name: value for name, value in old_values.items() if value is not None})


def _check_answers(model_uri: str, example: list[Any]) -> None:
    """Load a logged model as a server does, and check its vectors for an example."""
    import mlflow

    from . import pyfunc

    paths = list(sys.path)
    try:
        model = mlflow.pyfunc.load_model(model_uri)
        answer = model.predict(example, params=pyfunc.DEFAULT_PARAMS)
    finally:
        sys.path[:] = paths  # remove the model's copy of the library
    if len(answer) != len(example) or not all(np.isfinite(vectors).all() for vectors in answer):
        raise ElmoError("the model's vectors are not all finite numbers")


def requirements(tokenizer: Tokenization) -> list[str]:
    """Return the pip requirements for serving a model, at the installed versions.

    The tokenizer's packages have the versions that the model records.
    """
    versions = {name: version(name).split("+")[0] for name in (*LIBRARIES, "mlflow")}
    tokenizer_versions = tokenizer.libraries | tokenizer.splitter
    return [f"{name}=={number}" for name, number in (versions | tokenizer_versions).items()]
