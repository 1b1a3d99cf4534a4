"""finetune: a model and task text → a biLM of the domain, and what that cost on general text."""

from pathlib import Path

from elmo.errors import ElmoError
from pipeline.params import Cluster, Finetune


def run(
    model: Path,
    task: Path,
    general: Path,
    out: Path,
    params: Finetune,
    *,
    curves: Path,
    runs: Path,
    cluster: Cluster,
) -> dict[str, float]:
    """Fine-tune the model folder `model` on the shards `task`; write the model folder `out`.

    Perplexity is taken before and after, on the held-out split of `task` and of `general`: the
    second shows what was forgotten.
    """
    from elmo.checkpoint import load_model
    from elmo.shards import Shards
    from pipeline import trainer

    if not 0 < params.layer_decay <= 1:
        raise ElmoError(f"finetune.layer_decay must be in (0, 1], found {params.layer_decay}")
    parent = load_model(model)
    inputs = {
        "corpus": Shards(task).digest,
        "general": Shards(general).digest,
        "parent": parent.digest,
    }
    config = {
        "kind": "finetune",
        "model": str(model.absolute()),
        "shards": str(task.absolute()),
        "general": str(general.absolute()),
        "new_words": params.new_words,
        "freeze": list(params.freeze),
        "layer_decay": params.layer_decay,
    }
    found = trainer.train(
        "finetune", params, params.training, config, inputs=inputs, out=out, curves=curves,
        runs=runs, cluster=cluster,
    )  # fmt: skip
    before, after = found["before"], found["after"]
    metrics = {
        f"{text}_perplexity_{when}": figures[text]["average"]
        for text in ("task", "general")
        for when, figures in (("before", before), ("after", after))
    }
    return metrics | {
        "task_gain": 1 - after["task"]["average"] / before["task"]["average"],
        "general_loss": after["general"]["average"] / before["general"]["average"] - 1,
        "task_tokens": after["task"]["tokens"],
        "task_unk_rate": after["task"]["unk_rate"],
        "words_added": found["words_added"],
        "steps": found["steps"],
        "tokens_seen": found["tokens"],
    }
