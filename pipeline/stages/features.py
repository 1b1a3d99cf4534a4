"""features: the vectors of all sentences, written as a store, by many actors.

Each actor embeds a range of sentences at a time. The store's format, and why its bytes do not
depend on the actors, is in `elmo.store.build`; this module assigns the ranges.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.settings import StoreSettings

from .. import tracking
from ..cluster import workers
from ..cluster.storage import published_location
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..terminal import progress
from . import outlook
from .stage import OUT, Argument, Stage

if TYPE_CHECKING:
    from elmo.store.build import EmbedJob, JobRunner
    from elmo.store.layout import Layout
    from elmo.store.manifest import PartEntry, StoreManifest

THREADS = 4  # that embed in one process, at most: they share Python's lock

STAGE = Stage(
    name="features",
    version=7,
    help="Store MODEL's vectors of every token of SHARDS.",
    inputs=(Argument("shards"), Argument("model")),
    outputs=(OUT,),
    run=lambda params, **given: run(params=params.features, **given),
    summary=lambda figures, _: summary(figures),
    metrics={"tokens": "tokens", "bytes": "bytes"},
    product="vectors {out}",
    cluster=True,
    settles_precision=lambda _: True,
)


def run(
    shards: Location,
    model: Location,
    out: Location,
    params: StoreSettings,
    *,
    work: Location,
    cluster: Cluster,
) -> dict[str, float]:
    """Write the vectors of all sentences of `shards` to a store at `out`; return `store_metrics`.

    Finished parts wait in `work`, or at the URL of `out`, under a digest of the model, the shards
    and `params`; the next run resumes from them.
    """
    from elmo.data.shards import Shards
    from elmo.store import build as store_build
    from elmo.store import model_digest

    store_build.check_build(out, shards=shards, model=model, settings=params)
    inputs = {"model": model_digest(model), "shards": Shards(shards).digest}
    kept = work / fingerprint("features", STAGE.version, params, inputs)
    sources = {"model": model, "shards": shards}
    layout = store_build.make_layout(model, params)
    _check_room(out, kept, layout, tokens=Shards(shards).tokens())
    try:
        with tracking.run("features", params, inputs=inputs, sources=sources, folder=kept) as log:
            manifest = store_build.build(
                out,
                shards=shards,
                model=model,
                settings=params,
                work=None if out.local is None else kept,
                device=_device(cluster),
                run=_on(cluster),
            )
            _record(log, manifest, out)
    finally:
        _clear(kept)
    return store_metrics(manifest)


def _check_room(out: Location, kept: Location, layout: "Layout", *, tokens: int) -> None:
    """Say what a large store will take of its disk, and refuse one that can't fit."""
    home = out.absolute().local
    size = tokens * len(layout.contextual) * layout.width
    if home is None or size < outlook.LARGE:
        return
    there = sum(sum(one.tree().values()) for one in (Location(home), kept))
    free, human = outlook.free_bytes(home), progress.human_size
    line = f"{tokens:,} tokens take {human(size)}, {human(free)} are free"
    if (size if layout.codec == "none" else size // 2) - there > free:
        ways = outlook.advice_for_smaller_store(tokens * layout.width, layout.dtype)
        raise ElmoError(f"{out}: {line}; {ways}")
    if size > outlook.MATTERS * free:
        progress.say(f"features: {line}")


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints, of the `figures` that `store_metrics` returned."""
    return (
        f"{figures['tokens']:,} tokens in {figures['parts']} parts, "
        f"{progress.human_size(figures['bytes'])}, "
        f"{figures['bytes_per_token']:,.0f} bytes per token"
    )


def append(
    store: Location, shards: Location, model: Location, *, cluster: Cluster
) -> dict[str, float]:
    """Append the sentences of `shards` to a store as a new version; return its `store_metrics`.

    `model` is the one that made the store. If the same append was interrupted after its version was
    published, only its MLflow run is completed.
    """
    from elmo.data.shards import Shards
    from elmo.store import FeatureStore
    from elmo.store import build as store_build

    from ..settings.precision import check_store_precision

    before = FeatureStore(store, model=model)
    corpus, newest = Shards(shards).digest, before.manifest
    if newest.made_by == "append" and newest.sources[-1].digest == corpus:
        progress.say(f"{store}: its newest version has the sentences of {shards} already")
        inputs = {"model": newest.model.digest, "shards": corpus}
        with tracking.run(
            "append", before.layout, inputs=inputs, sources={"shards": shards}
        ) as log:
            _record(log, newest, store)
        return store_metrics(newest)
    store_build.check_append(store, shards=shards, model=model)
    say = partial(print, file=sys.stderr)
    check_store_precision(before.manifest.params.precision, device=_device(cluster), say=say)
    inputs = {
        "model": before.manifest.model.digest,
        "shards": corpus,
        "store": before.digest,
    }
    sources = {"shards": shards, "store": store}
    with tracking.run("append", before.layout, inputs=inputs, sources=sources) as log:
        manifest = store_build.append(
            store,
            shards=shards,
            model=model,
            device=_device(cluster),
            run=_on(cluster),
        )
        _record(log, manifest, store)
    return store_metrics(manifest)


def store_metrics(manifest: "StoreManifest") -> dict[str, float]:
    """Return the figures of the store that has this manifest, by the names that MLflow shows.

    They are the numbers of sentences, tokens, types, parts and bytes, and the bytes per token.
    """
    import msgspec

    counts = msgspec.to_builtins(manifest.counts)
    return {**counts, "bytes_per_token": round(counts["bytes"] / max(1, counts["tokens"]), 1)}


def _record(log: tracking.Run, manifest: "StoreManifest", out: Location) -> None:
    log.log_metrics(store_metrics(manifest))
    log.set_tag("model_digest", manifest.model.digest)
    log.set_tag("store", manifest.digest)
    log.set_tag("store_place", published_location(out).absolute().url)


def _clear(work: Location) -> None:
    """Remove the folder of a run, unless parts are in it: unfinished, or of an equal run."""
    if not work.folders():
        work.remove()


def _on(cluster: Cluster) -> "JobRunner":
    import torch

    def run(
        kind: Callable[..., Any], arguments: Sequence[Any], jobs: "Sequence[EmbedJob]"
    ) -> "Iterable[PartEntry]":
        return workers.actors(
            kind,
            arguments,
            jobs,
            cluster=cluster,
            label="features",
            name=_name,
            threads=1 if cluster.gpu else min(THREADS, torch.get_num_threads()),
        )

    return run


def _name(job: "EmbedJob") -> str:
    return f"{job.shard.file}, rows {job.start:,} to {job.stop - 1:,}"


def _device(cluster: Cluster) -> str:
    if cluster.gpu and not workers.elsewhere() and not workers.has_cuda():
        raise ElmoError("gpu is set and this machine has no CUDA device; set --no-gpu")
    return "cuda" if cluster.gpu else "cpu"
