"""Build a store from the shards of a corpus: each range of sentences becomes one part.

The content and name of a part depend on the model, the range, the settings and the kind of device,
not on the process that embeds it. So interrupted work resumes from finished parts, and a new store
reuses parts of the store that it replaces.

Shapes: T tokens, N distinct tokens, D width of a layer, P width of one direction.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import Any, cast

import msgspec
import torch

from elmo.data.arrays import Floats, Ints, split_into_runs
from elmo.data.manifest import ShardEntry
from elmo.data.shards import Shards
from elmo.errors import ElmoError
from elmo.io.atomic import check_writable
from elmo.io.folders import check_output_folder, link_or_copy, new_folder
from elmo.io.location import Folder, Location
from elmo.io.locks import work_folder_lock
from elmo.io.records import digest
from elmo.model.batches import batches_by_length
from elmo.model.config import CONFIG_FILE, model_location, read_config, read_training_record
from elmo.model.embedder import Embedder
from elmo.nn.threads import one_thread
from elmo.settings import PRECISIONS, ModelShape, Precision, StoreSettings
from elmo.store.layout import STORE_SCHEMA_VERSION, Layout, choose_layers
from elmo.store.manifest import (
    INNER_FOLDER,
    MANIFEST_PATH,
    STORE_FILES,
    ModelEntry,
    ParamsEntry,
    PartEntry,
    SourceShard,
    StoreManifest,
    StoreSource,
    encode_manifest,
    list_paths,
    new_manifest,
    read_manifest,
)
from elmo.store.writer import PartOrigin, Segment, find_part, reuse_part, write_part

PART_TOKENS = 1 << 18  # about so many per part; a killed run loses up to one part per process
SEGMENT_TOKENS = 32768  # tokens embedded together
BATCH_ROWS = 256  # sentences of a segment in a batch
MAX_PARTS = 1 << 14  # parts of a store, in addition to one per shard
_REPLACEABLE_FILES: dict[str, Any] = {"required": (INNER_FOLDER,), "pattern": STORE_FILES}


@dataclass(frozen=True)
class EmbedJob:
    """A job: embed rows `start` to `stop - 1` of a shard as the part that `origin` describes.

    `previous_part` is a part of the replaced store with the same vectors, or None.
    """

    shard: ShardEntry
    start: int
    stop: int
    origin: PartOrigin
    previous_part: PartEntry | None


class EmbeddingStopped(Exception):
    """Raised by a `ShardEmbedder` after `stop()`."""


class ShardEmbedder:
    """A callable that makes the part of one job and returns its manifest entry.

    The part is embedded unless it is already in the folder `out` or in `old_store`. Several threads
    may call it; after `stop()` their calls raise `EmbeddingStopped` within seconds.
    """

    def __init__(
        self,
        model: Location,
        shards: Location,
        out: Location,
        old_store: Location | None,
        layout: Layout,
        precision: str,
        device: str,
    ) -> None:
        self.shards = Shards(shards)
        self.out, self.old_store, self.layout = out, old_store, layout
        self._load_arguments = (model, device, precision)
        self._embedder: Embedder | None = None
        self._lock, self._stop_event = Lock(), Event()

    def __call__(self, job: EmbedJob) -> PartEntry:
        """Make the job's part unless it exists already; return its manifest entry.

        One thread computes it, because the number of threads could change the last bits of sums.
        """
        part = find_part(self.out, job.origin)
        if part is None and job.previous_part is not None and self.old_store is not None:
            part = reuse_part(
                self.out,
                self.old_store,
                job.previous_part,
                origin=job.origin,
                codec=self.layout.codec,
            )
        if part is not None:
            return part
        with one_thread():
            return self._write_part(job)

    def _write_part(self, job: EmbedJob) -> PartEntry:
        shard = self.shards.open(job.shard).rows(job.start, job.stop)
        embedder = self._load_embedder()
        x_NP = embedder.encode_types(shard.types)
        return write_part(
            self.out,
            shard=shard,
            x_NP=x_NP,
            segments=self._until_stopped(embed_segments(embedder, x_NP, shard.ids, shard.offsets)),
            layout=self.layout,
            origin=job.origin,
        )

    def stop(self) -> None:
        """Make the current and later calls of all threads raise `EmbeddingStopped` within
        seconds."""
        self._stop_event.set()

    def _until_stopped(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        for segment in segments:
            if self._stop_event.is_set():
                raise EmbeddingStopped
            yield segment

    def _load_embedder(self) -> Embedder:
        with self._lock:
            if self._embedder is None:
                model, device, precision = self._load_arguments
                checked_precision = cast(Precision, precision)
                self._embedder = Embedder.load(model, device=device, precision=checked_precision)
            return self._embedder


def embed_segments(embedder: Embedder, x_NP: Floats, ids: Ints, offsets: Ints) -> Iterator[Segment]:
    """Yield the vectors of a shard's sentences, in segments that depend only on the shard.

    The tokens of sentence k are `ids[offsets[k]:offsets[k + 1]]`, rows of `x_NP`, the context-free
    vectors of the distinct tokens. Memory use does not grow with the shard.
    """
    sentences = [ids[start:stop] for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]
    segments = []
    for start, stop in split_into_runs(offsets, SEGMENT_TOKENS):
        lengths = [len(sentence) for sentence in sentences[start:stop]]
        batches = [rows + start for rows in batches_by_length(lengths, BATCH_ROWS)]
        segments.append((slice(start, stop), batches))
    layers_of_segments = embedder.read_segments(x_NP, sentences, segments)
    for (span, _), layers in zip(segments, layers_of_segments, strict=True):
        yield Segment(span.start, span.stop, layers)


# Runs jobs, the third argument, on workers, each made by calling the first argument with the
# second; returns the manifest entries of the parts in any order.
JobRunner = Callable[
    [Callable[..., ShardEmbedder], Sequence[Any], Sequence[EmbedJob]], Iterable[PartEntry]
]


def build(
    out: Folder,
    *,
    shards: Folder,
    model: Folder,
    settings: StoreSettings,
    previous_store: Folder | None = None,
    replace: bool = False,
    work: Folder | None = None,
    device: str = "cpu",
    run_jobs: JobRunner | None = None,
) -> StoreManifest:
    """Write a store of the sentences of a shards folder to `out`; return its manifest.

    Parts that are still valid are reused from `previous_store` (default: a store at the local
    `out`); a part whose ids have changed is copied with the new ones. A local `out` is replaced
    when everything is written; until then, finished parts are kept in `work` (default: a hidden
    folder beside `out`). If `out` is a URL, parts are written there, and the manifest last; another
    store there is an error unless `replace` is set. `run_jobs(worker_type, arguments, jobs)` runs
    the jobs in workers `worker_type(*arguments)`; by default, they run one by one in this process.
    """
    location, shards, model = Location.parse(out), Location.parse(shards), model_location(model)
    check_store_inputs(location, shards=shards, model=model, settings=settings)
    corpus = Shards(shards)
    if previous_store is None:
        old_store = location if location.local is not None else None
    else:
        old_store = Location.parse(previous_store)
    layout = make_layout(model, settings)
    model_entry = _make_model_entry(model)
    jobs = _plan_jobs(corpus, layout, model_entry.digest, settings.precision, device, old_store)
    make_manifest = partial(
        new_manifest,
        layout=layout,
        model=model_entry,
        params=ParamsEntry(layers=settings.layers, precision=settings.precision),
        source=_make_source_entry(corpus, device),
    )

    def embed_parts(folder: Location) -> StoreManifest:
        arguments = (model, shards, folder, old_store, layout, settings.precision, device)
        return make_manifest(parts=list((run_jobs or run_serially)(ShardEmbedder, arguments, jobs)))

    if location.local is None:
        part_files = {job.origin.part_file for job in jobs}
        return find_published_store(
            location, part_files, make_manifest, replace=replace
        ) or _publish_store(location, embed_parts(location))
    work_key = digest([[job.origin.part_file for job in jobs], msgspec.to_builtins(model_entry)])
    parts_folder = None if work is None else Location.parse(work).local
    if parts_folder is None:
        parts_folder = location.local.with_name(f".{location.folder_name}.parts")
    check_writable(location.local)
    work_folder = parts_folder / work_key[:16]
    with work_folder_lock(work_folder):
        manifest = embed_parts(Location(work_folder))
        with new_folder(location, **_REPLACEABLE_FILES) as new_store:
            (new_store / INNER_FOLDER).mkdir()
            for path in list_paths(manifest.parts):
                source_path = work_folder / path
                if old_store and old_store.local and not source_path.exists():
                    source_path = old_store.local / path  # reused without a copy
                link_or_copy(source_path, new_store / path)
            Location(new_store).write(MANIFEST_PATH, encode_manifest(location, manifest))
            _check_complete(Location(new_store))
        Location(work_folder).remove()
    if work is None:
        with suppress(OSError):  # it has parts of another store
            parts_folder.rmdir()
    return manifest


def find_published_store(
    location: Location,
    part_files: set[str],
    make_manifest: Callable[..., StoreManifest],
    *,
    replace: bool,
) -> StoreManifest | None:
    """Return the manifest of the store at a URL if that store equals the one to make, else None.

    `part_files` are the parts' files of the store to make. If another store is there, its manifest
    is deleted with `replace`; otherwise `ElmoError` is raised.
    """
    if not location.exists(MANIFEST_PATH):
        return None
    manifest = read_manifest(location)
    has_same_parts = part_files == {part.file for part in manifest.parts}
    if has_same_parts and make_manifest(parts=manifest.parts).digest == manifest.digest:
        return manifest
    if not replace:
        raise ElmoError(
            f"{location}: another store exists, and outputs at a URL are never replaced; choose "
            "a new folder"
        )
    location.delete(MANIFEST_PATH)
    return None


def _publish_store(location: Location, manifest: StoreManifest) -> StoreManifest:
    """Delete files of other writers at a URL, and write the manifest."""
    _check_complete(location, manifest)
    paths = {*list_paths(manifest.parts), MANIFEST_PATH}
    location.delete_all(
        path for path in location.sizes() if re.fullmatch(STORE_FILES, path) and path not in paths
    )
    encoded = encode_manifest(location, manifest)
    if not location.create(MANIFEST_PATH, encoded) and location.read(MANIFEST_PATH) != encoded:
        raise ElmoError(
            f"{location}: another process published a different store here in the meantime; choose "
            "a new folder"
        )
    return manifest


def _check_complete(location: Location, manifest: StoreManifest | None = None) -> None:
    """Raise `ElmoError` if a store can't be opened, or if a file is missing or has the wrong size;
    `manifest` is given if it is not written yet."""
    parts = (manifest or read_manifest(location)).parts
    location.check_files((file.path, file.bytes) for part in parts for file in (part, part.types))


def check_store_inputs(
    out: Location, *, shards: Location, model: Location, settings: StoreSettings
) -> None:
    """Raise `ElmoError` if `build` could not write a store of these shards and settings to
    `out`."""
    check_output_folder(out, **_REPLACEABLE_FILES)
    corpus = Shards(shards)
    read_config(model).tokenizer.check_shards(corpus.tokenization, model=model, shards=shards)
    if not corpus.entries():
        raise ElmoError(f"{shards}: has no sentences; tokenize a corpus first")
    corpus.check_sizes()
    make_layout(model, settings)


def reusable_bytes(
    store: Location, *, shards: Location, model: Location, settings: StoreSettings, device: str
) -> int:
    """Return the size of the parts that `build` would reuse from a store."""
    layout, model_digest = make_layout(model, settings), read_config(model).digest
    jobs = _plan_jobs(Shards(shards), layout, model_digest, settings.precision, device, store)
    return sum(job.previous_part.bytes for job in jobs if job.previous_part is not None)


def make_layout(model: Location, settings: StoreSettings) -> Layout:
    """Return the layout of a store made by `model` with `settings`; raise `ElmoError` if they do
    not fit."""
    if settings.precision not in PRECISIONS:
        precisions = ", ".join(PRECISIONS)
        raise ElmoError(f"precision must be one of {precisions}, found {settings.precision!r}")
    shape = ModelShape.from_dict(read_config(model).model, source=f"{model}/{CONFIG_FILE}")
    layers = shape.layers + 1
    return Layout(
        layers=choose_layers(settings.layers, model_layers=layers),
        dim=shape.dim,
        model_layers=layers,
        dtype=settings.dtype,
        codec=settings.codec,
        row_group_tokens=settings.row_group_tokens,
    )


def _parts_by_fingerprint(store: Location | None) -> dict[str, PartEntry]:
    """Return the parts of a store by their fingerprints; none if it can't be read."""
    if store is None or not store.exists(MANIFEST_PATH):
        return {}
    try:
        return {part.fingerprint: part for part in read_manifest(store).parts}
    except ElmoError:  # damaged, or of another version: it is replaced as a whole
        return {}


def _plan_jobs(
    shards: Shards,
    layout: Layout,
    model_digest: str,
    precision: str,
    device: str,
    old_store: Location | None,
) -> list[EmbedJob]:
    jobs: list[EmbedJob] = []
    old_parts = _parts_by_fingerprint(old_store)
    for shard, start, stop in _divide_shards(shards):
        origin = PartOrigin(
            split=shard.split,
            shard=SourceShard(file=shard.file, sha256=shard.sha256),
            sentence_offset=shard.sentence_offset,
            document_offset=shard.document_offset,
            position=shard.first_sentence_id + start,
            inputs={
                "schema": STORE_SCHEMA_VERSION,
                "model": model_digest,
                "shard": shard.sha256,
                "split": shard.split,
                "rows": [start, stop],
                "layout": msgspec.to_builtins(layout),
                "precision": precision,
                "device": torch.device(device).type,
            },
        )
        jobs.append(EmbedJob(shard, start, stop, origin, old_parts.get(origin.fingerprint)))
    return jobs


def _divide_shards(shards: Shards) -> Iterator[tuple[ShardEntry, int, int]]:
    """Yield the ranges of all shards, of nearly equal numbers of sentences.

    They depend only on the shard. But if a corpus has too many tokens for `MAX_PARTS` parts, the
    size of a part is doubled until they fit, which bounds the size of the manifest.
    """
    part_tokens = PART_TOKENS
    while shards.tokens() > MAX_PARTS * part_tokens:
        part_tokens *= 2
    for shard in shards.entries():
        part_count = min(-(-shard.tokens // part_tokens), shard.sentences) or 1
        for k in range(part_count):
            yield shard, shard.sentences * k // part_count, shard.sentences * (k + 1) // part_count


def _make_model_entry(folder: Location) -> ModelEntry:
    """Return the manifest's record of the model: its digest, tokenizer and training."""
    config = read_config(folder)
    training = read_training_record(folder)
    training.pop("run_id", None)  # so that equal models give equal stores
    return ModelEntry(config.digest, config.tokenizer, training)


def _make_source_entry(shards: Shards, device: str) -> StoreSource:
    """Return the manifest entry of the shards."""
    counts = shards.manifest.counts
    return StoreSource(
        digest=shards.digest,
        tokenizer=shards.manifest.tokenizer,
        inputs=msgspec.to_builtins(shards.manifest.inputs),
        sentences=counts.sentences,
        documents=counts.documents,
        tokens=counts.tokens,
        device=torch.device(device).type,
    )


def run_serially(
    worker_type: Callable[..., ShardEmbedder], arguments: Sequence[Any], jobs: Sequence[EmbedJob]
) -> Iterable[PartEntry]:
    """Embed jobs one after another in this process; yield the manifest entry of each part.

    `worker_type` is called once, with `arguments`; its result is called with each job.
    """
    embedder = worker_type(*arguments)
    return (embedder(job) for job in jobs)
