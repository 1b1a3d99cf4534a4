"""Tracking in MLflow: runs with their params, curves and datasets.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. The stages of one `dvc
repro` are nested in one parent run. A stage checks that MLflow answers before it begins; from then
on its figures wait in a spool where MLflow is slow or down.
"""

from .client import (
    catch_mlflow_errors,
    check_database_exists,
    check_mlflow,
    database_file,
    mlflow_client,
    name_filter,
    secret_tracking_uri,
    shown_uri,
    silenced,
)
from .runs import (
    Run,
    RunFacts,
    count_unsent,
    end_killed_runs,
    run,
    run_exists,
    send_unsent,
    spool_folder,
    spools_of_urls,
    training_facts,
)

__all__ = [
    "Run",
    "RunFacts",
    "catch_mlflow_errors",
    "check_mlflow",
    "check_database_exists",
    "database_file",
    "end_killed_runs",
    "run_exists",
    "training_facts",
    "mlflow_client",
    "name_filter",
    "run",
    "send_unsent",
    "shown_uri",
    "silenced",
    "spool_folder",
    "spools_of_urls",
    "secret_tracking_uri",
    "count_unsent",
]
