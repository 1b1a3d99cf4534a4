"""Building a store from the shards of a corpus: each range of sentences becomes one part.

The content of a part depends on the model, the range, the settings and the kind of device, not on
the process that embeds it. Interrupted work therefore resumes from existing parts whose footers
have the required fingerprint.

Shapes: N distinct tokens, P projection.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, cast

import msgspec
import torch

from elmo.data.manifest import ShardEntry
from elmo.data.shards import Shards
from elmo.errors import ElmoError, Mismatch
from elmo.io.location import Folder, Location
from elmo.io.outputs import check_parent
from elmo.io.records import digest
from elmo.model.config import CONFIG, model_location, read_config, read_training
from elmo.model.embedder import Embedder, Segment
from elmo.nn.memory import keep_freed_memory
from elmo.nn.threads import one_thread
from elmo.settings import EMBEDDING_PRECISIONS, EmbeddingPrecision, ModelShape, StoreSettings
from elmo.store.layout import (
    SCHEMA_VERSION,
    Layout,
    Mix,
    choose_layers,
)
from elmo.store.manifest import (
    INNER_FOLDER,
    STORE_FILE,
    ModelEntry,
    ParamsEntry,
    PartEntry,
    SourceShard,
    StoreManifest,
    StoreSource,
    check_size,
    files_of,
    new_manifest,
    next_part_number,
    publish,
    read_manifest,
    sizes_of,
    versions,
)
from elmo.store.reader import check_layout, open_parquet
from elmo.store.writer import (
    Origin,
    Rows,
    find_part,
    is_whole,
    write_part,
)

PART_TOKENS = 1 << 18  # about how many tokens a part has at most: what a kill costs
_LARGER_SHARDS = "tokenize the text again with a larger tokenize.shard_bytes"
MOST_PARTS = 1 << 14  # parts a corpus is divided into, beside those that its shards make


@dataclass(frozen=True)
class EmbedJob:
    """A job: embed rows `start` to `stop - 1` of a shard as part `number` of the store.

    `first_sentence_id` and `first_document_id` are added to the ids that the shard gives.
    """

    number: int
    shard: ShardEntry
    start: int
    stop: int
    first_sentence_id: int
    first_document_id: int
    origin: Origin


class Stopped(Exception):
    """The end of a call of a `ShardEmbedder` that was stopped."""


class ShardEmbedder:
    """A callable that embeds one job and returns the manifest entry of its part.

    Parts are written to the first of `locations`; complete parts in any of them are reused. Several
    threads may call it; after `stop()` their calls raise `Stopped` within seconds.
    """

    def __init__(
        self,
        model: Location,
        shards: Location,
        locations: Sequence[Location],
        layout: Layout,
        precision: str,
        device: str,
    ) -> None:
        keep_freed_memory()
        self.shards = Shards(shards)
        self.locations, self.layout = locations, layout
        self._loading = (model, device, precision)
        self._embedder: Embedder | None = None
        self._lock, self._stopped = Lock(), Event()
        self._names = [location.names() for location in locations]

    def __call__(self, job: EmbedJob) -> PartEntry:
        """Write the job's part unless it exists already; return its manifest entry.

        One thread computes it, since the number of threads could change the last bits of sums.
        """
        for location, names in zip(self.locations, self._names, strict=True):
            part = find_part(location, names, job.number, origin=job.origin)
            if part is not None:
                return part
        with one_thread():
            return self._write(job)

    def _write(self, job: EmbedJob) -> PartEntry:
        shard = self.shards.open(job.shard).rows(job.start, job.stop)
        embedder = self._load()
        x_NP = embedder.encode_types(shard.types)
        return write_part(
            self.locations[0],
            job.number,
            rows=Rows(
                shard.sentence_ids + job.first_sentence_id,
                shard.document_ids + job.first_document_id,
                shard.offsets,
                shard.ids,
                shard.dictionary,
            ),
            x_NP=x_NP,
            segments=self._unless_stopped(
                embedder.segments(shard.types, shard.ids, shard.offsets, x_NP=x_NP)
            ),
            layout=self.layout,
            origin=job.origin,
        )

    def stop(self) -> None:
        """Make the calls of all threads, also later ones, end with `Stopped` within seconds."""
        self._stopped.set()

    def _unless_stopped(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if self._stopped.is_set():
                raise Stopped
            yield segment

    def _load(self) -> Embedder:
        with self._lock:
            if self._embedder is None:
                model, device, precision = self._loading
                chosen = cast(EmbeddingPrecision, precision)
                self._embedder = Embedder.load(model, device=device, precision=chosen)
            return self._embedder


# It gives the jobs to workers, each made by calling the first argument with the second, wherever it
# likes, and returns the manifest entries of the parts in any order.
JobRunner = Callable[
    [Callable[..., ShardEmbedder], Sequence[Any], Sequence[EmbedJob]], Iterable[PartEntry]
]


def build(
    out: Folder,
    *,
    shards: Folder,
    model: Folder,
    settings: StoreSettings,
    work: Folder | None = None,
    device: str = "cpu",
    run: JobRunner | None = None,
) -> StoreManifest:
    """Write a store of the sentences of a shards folder to `out`; return its manifest.

    The manifest is written last. `work` is where parts are kept until all are complete (default:
    `out`). An existing store in `out` gets a new version, unless its content would be the same.
    `run(kind, arguments, jobs)` executes the jobs with workers `kind(*arguments)`; by default they
    run one by one in this process.
    """
    location, shards, model = Location.of(out), Location.of(shards), model_location(model)
    before = _store_or_nothing(location)
    corpus = _corpus(shards, model)
    layout = make_layout(model, settings)
    made_by = _model(model)
    kind = torch.device(device).type
    jobs = _jobs(corpus, layout, made_by.digest, settings.precision, kind)
    fingerprint = digest([[job.origin.fingerprint for job in jobs], msgspec.to_builtins(made_by)])
    described = partial(
        new_manifest,
        layout=layout,
        model=made_by,
        params=ParamsEntry(layers=settings.layers, precision=settings.precision),
        sources=[_source(corpus, kind, sentences=0, documents=0)],
        made_by="build",
    )
    check_size(
        location, described(parts=[]), [job.origin.shards for job in jobs], remedy=_LARGER_SHARDS
    )
    unfinished = location if work is None else Location.of(work) / fingerprint[:16]
    existed = location.local is None or location.local.exists()
    try:
        with unfinished.writing():
            locations = (unfinished,) if unfinished == location else (unfinished, location)
            arguments = (model, shards, locations, layout, settings.precision, device)
            parts = list((run or run_serially)(ShardEmbedder, arguments, jobs))
            manifest = _publish(location, described(parts=parts), before, unfinished)
    except BaseException:
        for folder in (unfinished, *(() if existed else (location,))):
            (folder / INNER_FOLDER).remove_folder()  # unless files are in it
            folder.remove_folder()
        raise
    if unfinished != location:
        _clear(unfinished)
    return manifest


def append(
    store: Folder,
    *,
    shards: Folder,
    model: Folder,
    device: str = "cpu",
    run: JobRunner | None = None,
) -> StoreManifest:
    """Add the sentences of another shards folder to a store, as a new version; return its manifest.

    `model` must be the one that made the store; `run` is as for `build`. The new ids follow those
    of the store's last sentence and document. Readers of the old version are not affected.
    """
    location, shards, model = Location.of(store), Location.of(shards), model_location(model)
    before, corpus = check_append(location, shards=shards, model=model)
    kind = torch.device(device).type
    jobs = _jobs(
        corpus,
        before.layout,
        before.model.digest,
        before.params.precision,
        kind,
        first_number=next_part_number(before.parts),
        sentences=before.counts.sentences,
        documents=sum(source.documents for source in before.sources),
    )
    source = _source(
        corpus,
        kind,
        sentences=jobs[0].first_sentence_id,
        documents=jobs[0].first_document_id,
    )
    described = partial(
        new_manifest,
        layout=before.layout,
        model=before.model,
        params=before.params,
        sources=[*before.sources, source],
        made_by="append",
        before=before,
    )
    shards_of = [*(part.shards for part in before.parts), *(job.origin.shards for job in jobs)]
    remedy = f"join the parts that are there (elmo compact {location}), or {_LARGER_SHARDS}"
    check_size(location, described(parts=[]), shards_of, remedy=remedy)
    with location.writing():
        arguments = (model, shards, (location,), before.layout, before.params.precision, device)
        parts = list((run or run_serially)(ShardEmbedder, arguments, jobs))
        manifest = described(parts=[*before.parts, *parts])
        publish(location, manifest)
    return manifest


def check_append(
    location: Location, *, shards: Location, model: Location
) -> tuple[StoreManifest, Shards]:
    """Return the store's manifest and the shards; raise `ElmoError` if `append` would refuse them.

    This is quick: checksums are not compared here but when the files are read.
    """
    before = read_manifest(location)
    corpus = _corpus(shards, model)
    made_by = _model(model)
    if made_by.digest != before.model.digest:
        raise Mismatch(
            f"{location}: was made by model {before.model.digest[:12]}…, {model} is "
            f"{made_by.digest[:12]}…; a store has one model"
        )
    if corpus.digest in [source.digest for source in before.sources]:
        raise ElmoError(f"{location}: holds the sentences of {shards} already")
    _check_layout(location, before, model)
    location.check_all(sizes_of(before.parts))
    for part in before.parts[:1]:  # all have one layout
        footer = open_parquet(location, part.file).schema_arrow
        check_layout(location.name(part.file), footer, before.layout)
    return before, corpus


def check_build(
    out: Location, *, shards: Location, model: Location, settings: StoreSettings
) -> None:
    """Raise `ElmoError` if `build` could not write a store of these shards and settings to
    `out`."""
    _store_or_nothing(out)
    _corpus(shards, model)
    make_layout(model, settings)


def make_layout(model: Location, settings: StoreSettings) -> Layout:
    """Return the layout of a store made by `model` with `settings`; `ElmoError` if they do not
    fit."""
    if settings.precision not in EMBEDDING_PRECISIONS:
        known = ", ".join(EMBEDDING_PRECISIONS)
        raise ElmoError(f"precision must be one of {known}, found {settings.precision!r}")
    shape = ModelShape.from_dict(read_config(model).model, source=f"{model}/{CONFIG}")
    layers = shape.layers + 1
    if settings.layers == "mix" and not settings.mix:
        raise ElmoError('layers "mix" needs mix: the file that a task wrote')
    return Layout(
        layers=choose_layers(settings.layers, model_layers=layers),
        dim=shape.dim,
        model_layers=layers,
        dtype=settings.dtype,
        codec=settings.codec,
        row_group_tokens=settings.row_group_tokens,
        mix=Mix.load(settings.mix) if settings.layers == "mix" else None,
    )


def _corpus(shards: Location, model: Location) -> Shards:
    """Open the shards; raise `ElmoError` unless they have sentences, tokenized as the model
    requires."""
    corpus = Shards(shards)
    read_config(model).tokenizer.check_shards(corpus.tokenization, model=model, shards=shards)
    if not corpus.entries():
        raise ElmoError(f"{shards}: holds no sentences; tokenize a corpus first")
    corpus.check_sizes()
    return corpus


def _check_layout(location: Location, store: StoreManifest, model: Location) -> None:
    """Raise `ElmoError` if a manifest and its model disagree on the width or number of layers."""
    shape = ModelShape.from_dict(read_config(model).model, source=f"{model}/{CONFIG}")
    for name, recorded, actual in (
        ("dim", store.layout.dim, shape.dim),
        ("model_layers", store.layout.model_layers, shape.layers + 1),
    ):
        if recorded != actual:
            raise ElmoError(
                f"{location.name(store.path)}: layout.{name} is {recorded}, its "
                f"model's is {actual}; restore it or make the store again"
            )


def _jobs(
    corpus: Shards,
    layout: Layout,
    model: str,
    precision: str,
    device: str,
    *,
    first_number: int = 0,
    sentences: int = 0,
    documents: int = 0,
) -> list[EmbedJob]:
    jobs: list[EmbedJob] = []
    for shard, start, stop in _ranges(corpus):
        number = first_number + len(jobs)
        made_from = {
            "schema": SCHEMA_VERSION,
            "model": model,
            "shard": msgspec.to_builtins(shard),
            "rows": [start, stop],
            "layout": msgspec.to_builtins(layout),
            "precision": precision,
            "device": device,
            "first": [sentences, documents],
            "number": number,
        }
        metadata = {
            "elmo.model": model,
            "elmo.shard": shard.sha256,
            "elmo.precision": precision,
            "elmo.device": device,
        }
        shards = (SourceShard(file=shard.file, sha256=shard.sha256),)
        origin = Origin(shard.split, digest(made_from), shards, metadata)
        jobs.append(EmbedJob(number, shard, start, stop, sentences, documents, origin))
    return jobs


def _ranges(corpus: Shards) -> Iterator[tuple[ShardEntry, int, int]]:
    """Yield the ranges of all shards, of nearly equal numbers of sentences.

    They depend on the manifest alone. A corpus of more than `MOST_PARTS` parts gets larger parts,
    so that its store's manifest stays small enough to read.
    """
    part_tokens = max(PART_TOKENS, -(-corpus.tokens() // MOST_PARTS))
    for shard in corpus.entries():
        many = min(-(-shard.tokens // part_tokens), shard.sentences) or 1
        for k in range(many):
            yield shard, shard.sentences * k // many, shard.sentences * (k + 1) // many


def _model(folder: Location) -> ModelEntry:
    """Return the manifest's record of the model: its digest, tokenizer and training."""
    record = read_config(folder)
    training = read_training(folder)
    training.pop("run_id", None)  # of one training; an equal one gives an equal store
    return ModelEntry(record.digest, record.tokenizer, training)


def _source(corpus: Shards, device: str, *, sentences: int, documents: int) -> StoreSource:
    """Return the manifest entry of the shards, given the ids that their first sentence and document
    get."""
    counts = corpus.manifest.counts
    return StoreSource(
        digest=corpus.digest,
        tokenizer=corpus.manifest.tokenizer,
        inputs=msgspec.to_builtins(corpus.manifest.inputs),
        first_sentence_id=sentences,
        first_document_id=documents,
        sentences=counts.sentences,
        documents=counts.documents,
        tokens=counts.tokens,
        device=device,
    )


def run_serially(
    kind: Callable[..., ShardEmbedder], arguments: Sequence[Any], jobs: Sequence[EmbedJob]
) -> Iterable[PartEntry]:
    """Embed jobs one after another in this process; yield the manifest entry of each part.

    `kind` is called with `arguments` once, its result with each job.
    """
    embedder = kind(*arguments)
    return (embedder(job) for job in jobs)


def _store_or_nothing(location: Location) -> StoreManifest | None:
    """Return the newest manifest in `location`, or None if nothing is there.

    `ElmoError` is raised if there are files that do not belong to a store.
    """
    if location.local is not None:
        check_parent(location.local)
        if os.path.lexists(location.local) and not location.local.is_dir():
            raise ElmoError(f"{location}: is no folder; choose a folder for the store")
    names = location.names()
    if "manifest.json" in names or versions(location):
        return read_manifest(location)
    if location.local is not None and location.local.is_dir():
        names = [path.name for path in location.local.iterdir()]
    names += [f"{INNER_FOLDER}/{name}" for name in (location / INNER_FOLDER).entries()]
    others = [
        name
        for name in names
        if name != INNER_FOLDER and not name.startswith(".") and not STORE_FILE.fullmatch(name)
    ]
    if others:
        raise ElmoError(
            f"{location}: holds {sorted(others)[0]} and is not a store; choose another folder"
        )
    return None


def _publish(
    location: Location, manifest: StoreManifest, before: StoreManifest | None, unfinished: Location
) -> StoreManifest:
    """Move the parts to `location` and publish the manifest, unless the same version exists
    already."""
    with location.writing():
        if unfinished != location:
            for part in manifest.parts:
                for entry in (part.types, part):
                    if not unfinished.exists(entry.path):
                        continue  # an equal run has moved it, or it was in the store before
                    if not is_whole(location, entry):
                        location.delete(entry.path)
                        location.adopt(entry.path, unfinished)
        if before is not None:
            if _content(before).digest == _content(manifest).digest:
                return before
            manifest = msgspec.structs.replace(
                manifest, version=before.version + 1, before=before.digest
            )
        publish(location, manifest)
        return manifest


def _content(manifest: StoreManifest) -> StoreManifest:
    return msgspec.structs.replace(manifest, version=1, before=None, made_by="")


def _clear(unfinished: Location) -> None:
    """Remove a folder of unfinished parts, unless another process is writing the same store
    there."""
    if unfinished.being_written():
        return
    unfinished.delete_all(name for name in files_of(unfinished) if STORE_FILE.fullmatch(name))
    unfinished.sweep()
    (unfinished / INNER_FOLDER).remove_folder()
    unfinished.remove_folder()
