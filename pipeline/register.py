"""register: a model folder → a version in MLflow's registry, with its lineage as tags."""

from pathlib import Path

from elmo.files import read_json
from pipeline import tracking
from pipeline.params import Register


def run(
    model: Path, store: Path, out: Path, params: Register, *, general: Path, task: Path
) -> dict[str, str | int]:
    """Register `model` under the alias of `params`, once for each content; write `out`.

    The tags of the version name its run, the digests of corpus, vocabulary and store, and its
    perplexities. Run again against another registry, or one that was emptied, it registers anew.
    """
    from elmo.checkpoint import load_model
    from elmo.features import FeatureStore
    from elmo.files import write_json
    from elmo.shards import Shards
    from pipeline.pretrain import vocabulary_digest

    loaded = load_model(model)
    lineage = loaded.training
    opened = FeatureStore(store, model=loaded.digest)
    tags = {
        "model_digest": loaded.digest,
        "corpus": Shards(general).digest,
        "task": Shards(task).digest,
        "vocabulary": vocabulary_digest(model),
        "training_run": str(lineage.get("run_id", "")),
        f"store.{opened.digest[:12]}": store.name,
    }
    tags |= {
        f"perplexity.{when}.{text}": f"{figures['average']:.2f}"
        for when, texts in lineage.get("perplexity", {}).items()
        for text, figures in texts.items()
    }
    inputs = {"model": loaded.digest, "store": opened.digest}
    with tracking.run("register", params, inputs=inputs) as log:
        version, _ = tracking.register(
            model, name=params.name, alias=params.alias, tags=tags, log=log
        )
        log.tag("model_version", version)
        log.tag("model_digest", loaded.digest)
    uri = f"models:/{params.name}@{params.alias}"
    found = {"model_digest": loaded.digest, "name": params.name, "alias": params.alias, "uri": uri}
    write_json(out, found | {"version": int(version)})
    return {"version": int(version), "uri": uri}


def registered(out: Path) -> dict[str, str]:
    """What `run` wrote."""
    return read_json(out)
