"""Tracking in MLflow: runs with their params, curves and datasets.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. A stage checks that MLflow
answers before it begins; from then on it is told best effort.
"""

from .client import (
    catch_mlflow_errors,
    check_mlflow,
    configured_database,
    database_file,
    mlflow_client,
    public_uri,
    silence_logger,
)
from .runs import (
    Run,
    flat_params,
    run_exists,
    start_run,
)

__all__ = [
    "Run",
    "catch_mlflow_errors",
    "check_mlflow",
    "configured_database",
    "database_file",
    "flat_params",
    "run_exists",
    "mlflow_client",
    "start_run",
    "public_uri",
    "silence_logger",
]
