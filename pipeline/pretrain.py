"""pretrain: shards and vocabulary → a biLM, trained under Ray Train."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from elmo.files import digest, sha256
from pipeline.params import Cluster, Pretrain


def run(
    shards: Path,
    vocab: Path,
    out: Path,
    params: Pretrain,
    *,
    curves: Path,
    runs: Path,
    cluster: Cluster,
) -> dict[str, float]:
    """Pretrain on the training split of `shards`; write the model folder `out` and its curves."""
    from elmo.shards import Shards
    from pipeline import trainer

    inputs = {"corpus": Shards(shards).digest, "vocabulary": vocabulary_digest(vocab)}
    config = {
        "kind": "pretrain",
        "shards": str(shards.absolute()),
        "vocab": str(vocab.absolute()),
        "network": asdict(params.network),
    }
    found = trainer.train(
        "pretrain", params, params.training, config, inputs=inputs, out=out, curves=curves,
        runs=runs, cluster=cluster,
    )  # fmt: skip
    after: dict[str, Any] = found["after"]["general"]
    return {
        "heldout_perplexity": after["average"],
        "heldout_forward": after["forward"],
        "heldout_backward": after["backward"],
        "heldout_tokens": after["tokens"],
        "heldout_unk_rate": after["unk_rate"],
        "heldout_bits_per_byte": after["bits_per_byte"],
        "unigram_perplexity": after["unigram"],
        "times_below_unigram": after["unigram"] / after["average"],
        "steps": found["steps"],
        "tokens_seen": found["tokens"],
    }


def vocabulary_digest(folder: Path) -> str:
    """The digest of a vocabulary folder."""
    names = ("words.txt", "counts.txt", "characters.json")
    return digest({name: sha256(folder / name) for name in names if (folder / name).exists()})
