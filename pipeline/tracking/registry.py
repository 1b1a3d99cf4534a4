"""The registration of a model in MLflow's registry: once for each content.

Which version is `candidate` or champion is decided in `champion.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .. import tracking
from .champion import CANDIDATE, CHAMPION, decide_champion, find_version
from .served_model import log_model


def register(
    folder: Path,
    *,
    name: str,
    margin: float,
    tags: Mapping[str, str],
    run_id: str,
    description: str,
    trained_with: Mapping[str, Any] = MappingProxyType({}),
    scores: Mapping[str, float] = MappingProxyType({}),
) -> tuple[int, str]:
    """Register a model folder in MLflow under `name`, unless a version there has the same content;
    return the version and the decision about the champion.

    The content is known by its digest, "model_digest" in `tags`. A new version belongs to the
    MLflow run `run_id`, and people read its `description`. `margin` is the share by which
    perplexity must fall for the champion to move. MLflow shows the settings
    `trained_with` and the `scores` beside the model. Raises `ElmoError`, and
    publishes nothing, if the model can't embed an example.
    """
    with tracking.catch_mlflow_errors():
        content = tags["model_digest"]
        number = find_version(name, content)
        if number is None:
            logged_model = log_model(
                folder, run_id, digest=content, trained_with=trained_with, scores=scores
            )
            created = _publish(name, logged_model, run_id, tags, description)
            # The version is another process's if that one was first.
            number = find_version(name, content) or created
        return number, decide_champion(name, number, margin=margin, tags=tags)


def _publish(
    name: str, model_uri: str, run_id: str, tags: Mapping[str, str], description: str
) -> int:
    from mlflow.exceptions import MlflowException

    client = tracking.mlflow_client()
    try:
        client.create_registered_model(
            name,
            description=f"ELMo models: vectors of words in context. Use models:/{name}@{CHAMPION}; "
            f"@{CANDIDATE} is the newest version.",
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    model_id = model_uri.removeprefix("models:/")
    created = client.create_model_version(
        name, model_uri, run_id, tags=dict(tags), description=description, model_id=model_id
    )
    return int(created.version)
