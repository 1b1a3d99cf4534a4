"""features: shards and a model → a store, one part a shard, on as many actors as there are.

What a store is, and why its bytes do not depend on the actors, is in `elmo.store_build`; this
module hands the shards out.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo.store_layout import Settings
from pipeline import cluster as workers
from pipeline import tracking
from pipeline.params import Cluster, Features

if TYPE_CHECKING:
    import ray.data

    from elmo.store_build import Job, Run

STAGES = ("features", "append")


def run(
    shards: Path, model: Path, out: Path, params: Features, *, runs: Path, cluster: Cluster
) -> dict[str, float]:
    """Write the store of all sentences of `shards` to `out`; return its counts.

    Unfinished work waits in `runs`, under a fingerprint of the model, the shards and `params`, and
    the next run goes on from it.
    """
    from elmo import store_build
    from elmo.features import model_digest
    from elmo.shards import Shards

    store_build.make_layout(model, settings(params))
    inputs = {"model": model_digest(model), "shards": Shards(shards).digest}
    work = runs.absolute() / tracking.fingerprint("features", params, inputs)
    work.mkdir(parents=True, exist_ok=True)
    with tracking.run("features", params, inputs=inputs, folder=work) as log:
        manifest = store_build.build(
            out.absolute(),
            shards=shards.absolute(),
            model=model.absolute(),
            settings=settings(params),
            work=work,
            device=_device(cluster),
            run=_on(cluster),
        )
        _record(log, manifest, out)
    shutil.rmtree(work, ignore_errors=True)
    return metrics(manifest)


def append(store: Path, shards: Path, model: Path, *, cluster: Cluster) -> dict[str, float]:
    """Add the sentences of `shards` to a store as a new version; return its counts."""
    from elmo import store_build
    from elmo.features import FeatureStore
    from elmo.shards import Shards

    before = FeatureStore(store, model=model)
    inputs = {
        "model": before.manifest["model"]["digest"],
        "shards": Shards(shards).digest,
        "store": before.digest,
    }
    with tracking.run("append", before.layout, inputs=inputs) as log:
        manifest = store_build.append(
            store.absolute(),
            shards=shards.absolute(),
            model=model.absolute(),
            device=_device(cluster),
            run=_on(cluster),
        )
        _record(log, manifest, store)
    return metrics(manifest)


def stores(model: str | Path, *, name: str) -> list[dict[str, str]]:
    """The stores made from a model, newest first: their digest, place, and run.

    `model` is a folder, a digest, or the number of a version of the registered model `name`.
    """
    from elmo.errors import ElmoError
    from elmo.features import model_digest

    if isinstance(model, str) and model.isdecimal() and len(model) < 10:
        found = [row for row in tracking.versions(name) if row["version"] == int(model)]
        if not found:
            raise ElmoError(f"the registry has no version {model} of {name}")
        model = str(found[0]["model_digest"])
    asked = model_digest(model)
    made: dict[tuple[str, str], dict[str, str]] = {}
    for stage in STAGES:
        for row in tracking.runs(stage):
            if row.get("model_digest") == asked and "store" in row:
                entry = {"store": row["store"], "place": row["store_place"]}
                made.setdefault(
                    (row["store"], row["store_place"]), entry | {"run_id": row["run_id"]}
                )
    return list(made.values())


def store_run(store: str | Path) -> str | None:
    """The run that wrote a store, where this MLflow knows it."""
    from elmo.features import FeatureStore

    asked = FeatureStore(store).digest
    found = [row for stage in STAGES for row in tracking.runs(stage) if row.get("store") == asked]
    return str(found[0]["run_id"]) if found else None


def dataset(
    store: str | Path, *, layers: Sequence[int | str] | None = None, split: str | None = None
) -> "ray.data.Dataset":
    """The store as a Ray Data dataset: a row a sentence, read part by part on the workers.

    Columns are sentence_id, tokens, and a float32 tensor (tokens, dim) a layer.
    """
    from elmo.features import FeatureStore

    numbers = FeatureStore(store).numbers(split)
    return workers.dataset(_PartRows(str(store), layers), numbers)


@dataclass(frozen=True)
class _PartRows:
    """Reads the rows of one part, on whichever machine."""

    store: str
    layers: Sequence[int | str] | None

    def __call__(self, number: int) -> Iterator[dict[str, Any]]:
        from elmo.features import FeatureStore
        from elmo.store_export import rows

        return rows(FeatureStore(self.store, layers=self.layers), numbers=[number])


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


def _record(log: tracking.Run, manifest: dict[str, Any], out: Path) -> None:
    from elmo.files import digest

    log.metrics(metrics(manifest))
    log.tag("model_digest", manifest["model"]["digest"])
    log.tag("store", digest(manifest))
    log.tag("store_place", str(out.absolute()))


def _on(cluster: Cluster) -> "Run":
    def run(
        kind: Callable[..., Any], arguments: Sequence[Any], jobs: "Sequence[Job]"
    ) -> Iterable[dict[str, Any]]:
        return workers.actors(kind, arguments, jobs, cluster=cluster, label="features")

    return run


def _device(cluster: Cluster) -> str:
    return "cuda" if cluster.gpu else "cpu"
