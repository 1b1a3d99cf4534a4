"""features: the vectors of all sentences, written to a store by parallel actors.

Each actor embeds one range of sentences at a time. `elmo.store.build` writes the parts, whose bytes
do not depend on the actors, and reuses parts of the replaced store.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.settings import StoreSettings

from ..cluster import workers
from ..cluster.storage import UNFINISHED_FOLDER, published_location
from ..settings.cluster import Cluster
from ..settings.fingerprint import fingerprint
from ..terminal import progress
from ..tracking.runs import start_run
from .stage import OUT_ARGUMENT, Argument, Stage

if TYPE_CHECKING:
    from elmo.store.layout import Layout
    from elmo.store.manifest import StoreManifest

LARGE_STORE_BYTES = 1_000_000_000  # bytes of vectors above which free space is checked
MAX_THREADS = 4  # embedding threads per process, because they share Python's lock

STAGE = Stage(
    name="features",
    version=8,
    help="Store the vectors that MODEL computes for every token of SHARDS.",
    inputs=(Argument("shards"), Argument("model")),
    outputs=(OUT_ARGUMENT,),
    run=lambda params, **arguments: run(params=params.features, **arguments),
    summary=lambda figures, _: summary(figures),
    figure_by_metric={"tokens": "tokens", "bytes": "bytes"},
    product="vectors {out}",
    resumes_in_output=True,
    uses_cluster=True,
    reuses_output=True,
    has_precision=True,
)


def run(
    shards: Location,
    model: Location,
    out: Location,
    params: StoreSettings,
    *,
    work: Location,
    cluster: Cluster,
    previous_output: Location | None = None,
) -> dict[str, float]:
    """Write the vectors of all sentences of `shards` to a store at `out`; return its counts.

    Parts that are still valid are reused from `previous_output`, the store to be replaced (default:
    a store at the local `out`). Finished parts are kept in `work`, or at the URL of `out`, under a
    digest of the model, the shards and `params`; an interrupted run resumes from them.
    """
    import torch

    from elmo.data.shards import Shards
    from elmo.store import build as store_build
    from elmo.store import model_digest

    store_build.check_store_inputs(out, shards=shards, model=model, settings=params)
    inputs = {"model": model_digest(model), "shards": Shards(shards).digest}
    folder = work / fingerprint("features", STAGE.version, params, inputs)
    sources = {"model": model, "shards": shards}
    build_arguments: dict[str, Any] = {"shards": shards, "model": model, "settings": params}
    build_arguments["device"] = workers.choose_device(cluster)
    reusable_bytes = sum(folder.sizes().values())
    reusable_bytes += store_build.reusable_bytes(out, **build_arguments)
    layout = store_build.make_layout(model, params)
    _check_room(out, layout, tokens=Shards(shards).tokens(), reusable_bytes=reusable_bytes)

    def run_jobs(worker_type: Callable[..., Any], arguments: Sequence[Any], jobs: Any) -> Any:
        if reused_parts := sum(job.previous_part is not None for job in jobs):
            progress.say(
                f"features: {reused_parts} of {len(jobs)} parts reused from the previous store"
            )
        return workers.map_actors(
            worker_type,
            arguments,
            jobs,
            cluster=cluster,
            label="features",
            name_of=lambda job: f"{job.shard.file}, rows {job.start:,} to {job.stop - 1:,}",
            threads=1 if cluster.gpu else min(MAX_THREADS, torch.get_num_threads()),
        )

    try:
        with start_run(
            "features", params, inputs=inputs, sources=sources, folder=folder
        ) as mlflow_run:
            manifest = store_build.build(
                out,
                previous_store=previous_output,
                replace=f"/{UNFINISHED_FOLDER}/" in out.url,
                work=folder,
                run_jobs=run_jobs,
                **build_arguments,
            )
            mlflow_run.log_metrics(count_store(manifest))
            mlflow_run.set_tag("model_digest", manifest.model.digest)
            mlflow_run.set_tag("store", manifest.digest)
            mlflow_run.set_tag("store_place", published_location(out).absolute().url)
    finally:
        if not folder.folders():  # else another run on the same inputs uses its parts
            folder.remove()
    return count_store(manifest)


def _check_room(out: Location, layout: "Layout", *, tokens: int, reusable_bytes: int) -> None:
    """Refuse a large store that can't fit on its disk; `reusable_bytes` of it already exist."""
    local_out = out.absolute().local
    size = tokens * len(layout.contextual_layers) * layout.vector_bytes
    if local_out is None or size < LARGE_STORE_BYTES:
        return
    existing_folder = next(path for path in (local_out, *local_out.parents) if path.is_dir())
    free_bytes, as_text = shutil.disk_usage(existing_folder).free, progress.human_size
    if (size if layout.codec == "none" else size // 2) - reusable_bytes > free_bytes:
        raise ElmoError(
            f"{out}: {tokens:,} tokens need {as_text(size)}, but {as_text(free_bytes)} is free; "
            f'set features.layers to "top" ({as_text(tokens * layout.vector_bytes)}), name less '
            "text in corpus.domain, or set storage in cluster.yaml to a URL"
        )


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints, from the `figures` of `count_store`."""
    return (
        f"{figures['tokens']:,} tokens in {figures['parts']} parts, "
        f"{progress.human_size(figures['bytes'])}, "
        f"{figures['bytes_per_token']:,.0f} bytes per token"
    )


def count_store(manifest: "StoreManifest") -> dict[str, float]:
    """Return the counts of a store by the names that MLflow shows, from its manifest.

    The counts are of sentences, tokens, types, parts and bytes, and the bytes per token.
    """
    import msgspec

    counts = msgspec.to_builtins(manifest.counts)
    return {**counts, "bytes_per_token": round(counts["bytes"] / max(1, counts["tokens"]), 1)}
