"""Tracking in MLflow: runs with their params, curves and datasets.

The tracking URI is `MLFLOW_TRACKING_URI`; if it is not set, runs go to `mlflow.db` in the project's
folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. A stage checks that MLflow answers
before it begins; from then on, logging is best effort.
"""
