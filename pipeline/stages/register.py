"""register: registers a model folder in MLflow, as a version of the run that trained it.

It runs in each `dvc repro`, because the project cannot know which models a registry has: after a
clone and `dvc pull`, the registry may be empty. It is fast if the model is already registered.
"""

import os
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from elmo.io.atomic import check_output_record, write_json
from elmo.io.folders import local_folder
from elmo.io.location import Location
from elmo.io.records import digest

from ..settings.params import RegisterSettings
from ..terminal.urls import hide_credentials
from ..tracking import champion, registry
from ..tracking.client import catch_mlflow_errors, mlflow_client
from ..tracking.origin import COMMIT_TAG
from ..tracking.runs import Run, run_exists, start_run
from .stage import Argument, Stage

REGISTER = "ELMO_REGISTER"  # if it is set, DVC experiments register their models too
_NOT_REGISTERED = f"nothing: this is an experiment; to register its model: {REGISTER}=1 dvc exp run"


class Lineage(Struct):
    """The fields of a model's `training.json` that are shown in the registry.

    `run_id` is the MLflow run that trained it with the settings `params`. `perplexity` holds the
    held-out figures by time ("before" or "after" training), text and name.
    """

    run_id: str = ""
    stage: str = ""
    params: dict[str, Any] = {}
    perplexity: dict[str, dict[str, dict[str, float | None]]] = {}


class RegisterRecord(Struct, forbid_unknown_fields=True):
    """The file that this stage writes: the version under which the model is registered.

    `name` is the name of the registered model. If nothing was registered, the version is 0 and the
    URI is empty.
    """

    model_digest: str
    name: str
    uri: str
    version: int


class RegisterFigures(Struct, forbid_unknown_fields=True):
    """The stage's figures: the version and its URI, and the decision about the champion."""

    version: int
    uri: str
    decision: str


STAGE = Stage(
    name="register",
    version=3,
    help="Register MODEL in MLflow, with its lineage.",
    inputs=(
        Argument("model"),
        Argument("store"),
        Argument("general", help="The shards that the model was pretrained on."),
        Argument("domain", help="The shards that the model was fine-tuned on."),
    ),
    outputs=(Argument("out", "path"),),
    run=lambda params, **arguments: run(params=params.register, **arguments),
    summary=lambda figures, _: summary(figures),
    work=None,
    figures_type=RegisterFigures,
)


def run(
    model: Location,
    store: Location,
    out: Path,
    params: RegisterSettings,
    *,
    general: Location,
    domain: Location,
) -> dict[str, str | int]:
    """Register `model` under the name in `params`, unless it is registered; return its version.

    The result also has its URI and the decision about the champion
    (`pipeline/tracking/champion.py`). The record is written to `out`. `store` was made from the
    model; `general` and `domain` are the shards it was trained on. The version belongs to the
    MLflow run that trained the model. Its tags are the model's digest, its stores, its
    perplexities, and digests of the held-out texts and the vocabulary: perplexities are comparable
    only if these are equal. A DVC experiment registers nothing unless `ELMO_REGISTER` is set; then
    the version is 0.
    """
    from elmo.data.shards import Shards
    from elmo.store import FeatureStore, model_digest

    check_output_record(out, RegisterRecord)
    content_digest = model_digest(model)
    lineage = model.read_record("training.json", Lineage)
    features = FeatureStore(store, model=content_digest)
    shards_by_text = {"general": Shards(general), "domain": Shards(domain)}
    scores = {
        f"perplexity.{time}.{text}": average
        for time, texts in lineage.perplexity.items()
        for text, figures in texts.items()
        if (average := figures.get("average")) is not None
    }
    size = champion.SHORT_DIGEST_CHARACTERS
    tags = {
        "model_digest": content_digest,
        "words": model.sha256("words.txt")[:size],
        f"store.{features.digest[:size]}": hide_credentials(store.absolute().url),
        **{
            f"heldout.{text}": heldout_digest(text_shards)[:size]
            for text, text_shards in shards_by_text.items()
        },
        **{name: f"{value:.6g}" for name, value in scores.items() if ".after." in name},
    }
    version = champion.find_version(params.name, content_digest)
    if version is None and os.environ.get("DVC_EXP_NAME") and not os.environ.get(REGISTER):
        write_json(out, to_builtins(RegisterRecord(content_digest, params.name, "", 0)))
        return {"version": 0, "uri": "", "decision": _NOT_REGISTERED}
    if version is None:
        texts = {text: text_shards.digest for text, text_shards in shards_by_text.items()}
        inputs = {"model": content_digest, "store": features.digest, **texts}
        sources = {"model": model, "store": store, "general": general, "domain": domain}
        with start_run("register", params, inputs=inputs, sources=sources) as mlflow_run:
            version, decision = _register_version(model, lineage, mlflow_run, tags, scores, params)
    else:
        decision = champion.decide_champion(params.name, version, tags=tags, margin=params.margin)
    uri = f"models:/{params.name}/{version}"
    write_json(out, to_builtins(RegisterRecord(content_digest, params.name, uri, version)))
    return {"version": version, "uri": uri, "decision": decision}


def summary(figures: dict[str, str | int]) -> str:
    """Return the line that the stage prints: the version, its URI and the decision."""
    if not figures["version"]:
        return str(figures["decision"])
    return f"version {figures['version']}, {figures['uri']}; {figures['decision']}"


def _register_version(
    model: Location,
    lineage: Lineage,
    mlflow_run: Run,
    tags: dict[str, str],
    scores: dict[str, float],
    params: RegisterSettings,
) -> tuple[int, str]:
    """Register a new model; return its version and the decision about the champion."""
    mlflow_run.log_metrics(scores)
    with catch_mlflow_errors():
        has_training_run = bool(lineage.run_id) and run_exists(lineage.run_id)
        run_id = lineage.run_id if has_training_run else mlflow_run.run_id
        run_tags = mlflow_client().get_run(run_id).data.tags
    if commit := run_tags.get(COMMIT_TAG):
        tags = tags | {"commit": commit}
    with local_folder(model) as local_copy:
        version, decision = registry.register(
            local_copy,
            tags=tags,
            run_id=run_id,
            name=params.name,
            margin=params.margin,
            trained_with=lineage.params,
            scores=scores,
        )
    mlflow_run.set_tag("model_version", str(version))
    mlflow_run.set_tag("model_digest", tags["model_digest"])
    return version, decision


def heldout_digest(shards: Any) -> str:
    """Return a digest of the held-out split of shards; empty if nothing is held out."""
    digests = [entry.sha256 for entry in shards.entries("heldout")]
    return digest(digests) if digests else ""
