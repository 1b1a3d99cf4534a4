"""features: shards and a model → a store, one part a shard, on as many actors as there are.

What a store is, and why its bytes do not depend on the actors, is in `elmo.store_build`; this
module hands the shards out.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from elmo import store_build
from elmo.store_build import Job, Settings
from pipeline import cluster as workers
from pipeline.params import Cluster, Features


def run(
    shards: Path, model: Path, out: Path, params: Features, *, runs: Path, cluster: Cluster
) -> dict[str, float]:
    """Write the store of all sentences of `shards` to `out`; return its counts.

    Unfinished work waits in `runs`, under a fingerprint of the model, the shards and `params`, and
    the next run goes on from it.
    """
    manifest = store_build.build(
        out.absolute(),
        shards=shards.absolute(),
        model=model.absolute(),
        settings=settings(params),
        work=runs.absolute(),
        device=_device(cluster),
        run=_on(cluster),
    )
    return metrics(manifest)


def append(store: Path, shards: Path, model: Path, *, cluster: Cluster) -> dict[str, float]:
    """Add the sentences of `shards` to a store as a new version; return its counts."""
    manifest = store_build.append(
        store.absolute(),
        shards=shards.absolute(),
        model=model.absolute(),
        device=_device(cluster),
        run=_on(cluster),
    )
    return metrics(manifest)


def settings(params: Features) -> Settings:
    """The settings that a params section asks for."""
    return Settings(
        layers=params.layers,
        mix=params.mix,
        dtype=params.dtype,
        codec=params.codec,
        row_group_tokens=params.row_group_tokens,
        precision=params.precision,
    )


def metrics(manifest: dict[str, Any]) -> dict[str, float]:
    """The counts of a store, and how many bytes a token takes."""
    counts = manifest["counts"]
    return {**counts, "bytes_per_token": round(counts["bytes"] / max(1, counts["tokens"]), 1)}


def _on(cluster: Cluster) -> store_build.Run:
    def run(
        kind: Callable[..., Any], arguments: Sequence[Any], jobs: Sequence[Job]
    ) -> Iterable[dict[str, Any]]:
        return workers.actors(kind, arguments, jobs, cluster=cluster, label="features")

    return run


def _device(cluster: Cluster) -> str:
    return "cuda" if cluster.gpu else "cpu"
