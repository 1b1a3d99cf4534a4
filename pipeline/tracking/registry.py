"""Register a model in MLflow's registry, once for each content.

`champion.py` decides which version is `candidate` or `champion`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .champion import CANDIDATE, CHAMPION, decide_champion, find_version
from .client import catch_mlflow_errors, mlflow_client
from .served_model import log_model


def register(
    folder: Path,
    *,
    name: str,
    margin: float,
    tags: Mapping[str, str],
    run_id: str,
    trained_with: Mapping[str, Any] = MappingProxyType({}),
    scores: Mapping[str, float] = MappingProxyType({}),
) -> tuple[int, str]:
    """Register a model folder in MLflow under `name`, unless a version there has the same content;
    return the version and the decision about the champion.

    Equal content has an equal digest, "model_digest" in `tags`. A new version belongs to the MLflow
    run `run_id`. `margin` is the share by which perplexity must fall to move `champion`. MLflow
    shows the settings `trained_with` and the `scores` with the model. Raises `ElmoError`, and
    registers nothing, if the model can't embed an example.
    """
    from mlflow.exceptions import MlflowException

    model_digest = tags["model_digest"]
    with catch_mlflow_errors():
        client, version = mlflow_client(), find_version(name, model_digest)
        if version is None:
            uri = log_model(
                folder, run_id, digest=model_digest, trained_with=trained_with, scores=scores
            )
            try:
                client.create_registered_model(
                    name,
                    description="ELMo models: vectors of words in context. Use "
                    f"models:/{name}@{CHAMPION}; @{CANDIDATE} is the newest version.",
                )
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            model_version = client.create_model_version(
                name, uri, run_id, tags=dict(tags), model_id=uri.removeprefix("models:/")
            )
            # If another process was faster, this is its version.
            version = find_version(name, model_digest) or int(model_version.version)
        return version, decide_champion(name, version, margin=margin, tags=tags)
