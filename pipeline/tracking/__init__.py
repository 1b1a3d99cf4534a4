"""Tracking in MLflow: runs with their params, curves and datasets.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. The stages of one `dvc
repro` are nested in one parent run. A stage checks that MLflow answers before it begins; from then
on its figures wait in a spool where MLflow is slow or down.
"""

from .client import (
    answers,
    check,
    check_there,
    database_file,
    mlflow_client,
    named,
    shown_uri,
    silent,
    tracking_uri,
)
from .runs import (
    Run,
    RunFacts,
    TrackedRun,
    end_killed,
    exists,
    facts,
    facts_before,
    run,
    runs_of,
    send_unsent,
    spool_of,
    unsent,
)

__all__ = [
    "Run",
    "RunFacts",
    "TrackedRun",
    "answers",
    "check",
    "check_there",
    "database_file",
    "end_killed",
    "exists",
    "facts",
    "facts_before",
    "mlflow_client",
    "named",
    "run",
    "runs_of",
    "send_unsent",
    "shown_uri",
    "silent",
    "spool_of",
    "tracking_uri",
    "unsent",
]
