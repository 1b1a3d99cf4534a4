"""Tracking in MLflow: runs with their params, curves and datasets.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. A stage checks that MLflow
answers before it begins; from then on it is told best effort.
"""
