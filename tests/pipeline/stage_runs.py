"""The MLflow runs of a stage, as tests look them up."""

from typing import Any

from pipeline.tracking.client import experiment_id, mlflow_client


def runs_of(stage: str) -> list[Any]:
    """Return the MLflow runs of a stage, newest first."""
    client = mlflow_client()
    return list(client.search_runs([experiment_id(client, stage)], f"tags.stage = '{stage}'"))
