"""Embeds the shards of a corpus into a store: each shard becomes one part, or nothing.

What a part holds follows from the model, its shard and the settings, never from who embeds it or
when, so work that was interrupted goes on from the parts whose footers carry the fingerprint
asked for.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch

from elmo.embedder import Embedder
from elmo.errors import ElmoError
from elmo.features import model_digest
from elmo.files import check_sha256, digest, new_folder, read_json, write_json
from elmo.shards import Shards
from elmo.store_layout import SCHEMA_VERSION, Layout, Mix, Settings, choose_layers
from elmo.store_manifest import MANIFEST, new_manifest, next_number, publish, read_manifest
from elmo.store_place import Place
from elmo.store_write import Rows, describe_part, part_names, read_metadata, write_part

Info = dict[str, Any]
PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Job:
    """One shard to embed, as part `number`; its ids are shifted by those of the first ones."""

    number: int
    shard: Info
    first_sentence_id: int
    first_document_id: int
    metadata: dict[str, str]


class ShardEmbedder:
    """Embeds jobs one after another: `ShardEmbedder(…)(job)` gives the manifest's entry."""

    def __init__(
        self, model: Path, shards: Path, work: Path, layout: Layout, precision: str, device: str
    ) -> None:
        self.shards = Shards(shards)
        self.work, self.layout = work, layout
        self._loading = (model, device, precision)
        self._embedder: Embedder | None = None

    def __call__(self, job: Job) -> Info:
        """Write the job's part, unless it is there with the same fingerprint.

        One thread: how sums are split between threads must not show in the bytes.
        """
        entry = job.shard
        names = part_names(job.number)
        store = self.work / "store"
        wanted = job.metadata["elmo.fingerprint"]
        found = [read_metadata(store / name).get("elmo.fingerprint") for name in names]
        if found != [wanted, wanted]:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                self._write(job, store)
            finally:
                torch.set_num_threads(threads)
        return {
            **describe_part(store, job.number),
            "split": entry["split"],
            "fingerprint": wanted,
            "shards": [{"file": entry["file"], "sha256": entry["sha256"]}],
        }

    def _write(self, job: Job, store: Path) -> None:
        check_sha256(self.shards.folder / job.shard["file"], job.shard["sha256"])
        shard = self.shards.open(job.shard)
        embedder = self._load()
        x_NP = embedder.encode_types(shard.types)
        write_part(
            store,
            job.number,
            rows=Rows(
                shard.sentence_ids + job.first_sentence_id,
                shard.document_ids + job.first_document_id,
                shard.offsets,
                shard.ids,
                shard.dictionary,
            ),
            x_NP=x_NP,
            segments=embedder.segments(shard.types, shard.ids, shard.offsets, x_NP=x_NP),
            layout=self.layout,
            metadata=job.metadata,
            beside=self.work / "new",
        )

    def _load(self) -> Embedder:
        if self._embedder is None:
            model, device, precision = self._loading
            chosen = cast(Literal["float32", "bfloat16"], precision)
            self._embedder = Embedder.load(model, device=device, precision=chosen)
        return self._embedder


Run = Callable[[Callable[..., ShardEmbedder], Sequence[Any], Sequence[Job]], Iterable[Info]]


def build(
    out: Path,
    *,
    shards: Path,
    model: Path,
    settings: Settings,
    work: Path,
    device: str = "cpu",
    run: Run | None = None,
) -> Info:
    """Write the store of a shards folder to `out`, which appears when it is complete.

    `work` is where unfinished stores wait, one folder for each fingerprint. `run(kind, arguments,
    jobs)` does the jobs with any number of `kind(*arguments)`; by default here, one by one.
    Returns the manifest.
    """
    corpus = _corpus(shards)
    layout = make_layout(model, settings)
    description = _model(model)
    jobs = _jobs(corpus, layout, description["digest"], settings.precision)
    fingerprint = digest([[job.metadata["elmo.fingerprint"] for job in jobs], description])
    here = work / fingerprint[:16]
    for name in ("store", "new"):
        (here / name).mkdir(parents=True, exist_ok=True)
    arguments = (model, shards, here, layout, settings.precision, device)
    parts = list((run or _here)(ShardEmbedder, arguments, jobs))
    manifest = new_manifest(
        layout=layout,
        model=description,
        params={"layers": settings.layers, "precision": settings.precision},
        sources=[_source(corpus, sentences=0, documents=0)],
        parts=parts,
        made_by="build",
    )
    write_json(here / "store" / MANIFEST, manifest)
    _move(here / "store", out)
    shutil.rmtree(here, ignore_errors=True)
    return manifest


def append(
    store: Path,
    *,
    shards: Path,
    model: Path,
    device: str = "cpu",
    run: Run | None = None,
) -> Info:
    """Add the sentences of another shards folder to a store, as a new version of it.

    They get the numbers after the store's last sentence and document. Readers of the version
    before go on undisturbed. Returns the new manifest.
    """
    before = read_manifest(Place(store))
    corpus = _corpus(shards)
    description = _model(model)
    layout = Layout.from_dict(before["layout"])
    if description["digest"] != before["model"]["digest"]:
        raise ElmoError(
            f"{store}: was made by model {before['model']['digest'][:12]}…, {model} is "
            f"{description['digest'][:12]}…; a store has one model"
        )
    if corpus.digest in [source["digest"] for source in before["sources"]]:
        raise ElmoError(f"{store}: holds the sentences of {shards} already")
    jobs = _jobs(
        corpus,
        layout,
        description["digest"],
        before["params"]["precision"],
        first_number=next_number(store),
        sentences=before["counts"]["sentences"],
        documents=sum(source["documents"] for source in before["sources"]),
    )
    here = store / f".append-{digest([job.metadata for job in jobs])[:16]}"
    for name in ("store", "new"):
        (here / name).mkdir(parents=True, exist_ok=True)
    arguments = (model, shards, here, layout, before["params"]["precision"], device)
    parts = list((run or _here)(ShardEmbedder, arguments, jobs))
    first = jobs[0]
    source = _source(corpus, sentences=first.first_sentence_id, documents=first.first_document_id)
    manifest = new_manifest(
        layout=layout,
        model=before["model"],
        params=before["params"],
        sources=[*before["sources"], source],
        parts=[*before["parts"], *parts],
        made_by="append",
        before=before,
    )
    for job in jobs:
        for name in part_names(job.number):
            os.replace(here / "store" / name, store / name)
    publish(store, manifest)
    shutil.rmtree(here, ignore_errors=True)
    return manifest


def make_layout(model: Path, settings: Settings) -> Layout:
    """The layout of a store that `model` makes with `settings`."""
    if settings.precision not in PRECISIONS:
        raise ElmoError(
            f"precision must be one of {', '.join(PRECISIONS)}, found {settings.precision!r}"
        )
    model_digest(model)
    shape = read_json(model / "config.json").get("model")
    if not isinstance(shape, dict) or not {"layers", "projection"} <= shape.keys():
        raise ElmoError(f"{model / 'config.json'}: must say the model's layers and projection")
    layers = int(shape["layers"]) + 1
    if settings.layers == "mix" and not settings.mix:
        raise ElmoError('layers "mix" needs mix: the file that a task wrote')
    return Layout(
        layers=choose_layers(settings.layers, model_layers=layers),
        dim=2 * int(shape["projection"]),
        model_layers=layers,
        dtype=settings.dtype,
        codec=settings.codec,
        row_group_tokens=settings.row_group_tokens,
        mix=read_mix(Path(settings.mix)) if settings.layers == "mix" else None,
    )


def read_mix(path: Path) -> Mix:
    """The mix a task has learned: a JSON file with `weights`, which sum to 1, and `gamma`."""
    value = read_json(path)
    weights, gamma = value.get("weights"), value.get("gamma")
    numbers = isinstance(weights, list) and all(isinstance(w, int | float) for w in weights)
    if not numbers or not isinstance(gamma, int | float):
        raise ElmoError(f"{path}: a mix must have weights, a list of numbers, and gamma, a number")
    return Mix(tuple(float(weight) for weight in cast(list[float], weights)), float(gamma))


def write_mix(path: Path, mix: Mix) -> None:
    """Write what `read_mix` reads."""
    write_json(path, {"kind": "mix", **asdict(mix), "weights": list(mix.weights)})


def _corpus(shards: Path) -> Shards:
    corpus = Shards(shards)
    if not corpus.infos():
        raise ElmoError(f"{shards}: holds no sentences; tokenize a corpus first")
    return corpus


def _jobs(
    corpus: Shards,
    layout: Layout,
    model: str,
    precision: str,
    *,
    first_number: int = 0,
    sentences: int = 0,
    documents: int = 0,
) -> list[Job]:
    jobs = []
    for place, shard in enumerate(corpus.infos()):
        made_from = {
            "schema": SCHEMA_VERSION,
            "model": model,
            "shard": shard["sha256"],
            "layout": layout.to_dict(),
            "precision": precision,
            "first": [sentences, documents],
            "number": first_number + place,
        }
        metadata = {
            "elmo.fingerprint": digest(made_from),
            "elmo.model": model,
            "elmo.shard": shard["sha256"],
            "elmo.split": shard["split"],
            "elmo.precision": precision,
        }
        jobs.append(Job(first_number + place, shard, sentences, documents, metadata))
    return jobs


def _model(folder: Path) -> Info:
    """What the manifest says of the model: its digest and where it came from."""
    return {"digest": model_digest(folder), "training": read_json(folder / "training.json")}


def _source(corpus: Shards, *, sentences: int, documents: int) -> Info:
    """What the manifest says of the shards; their first sentence and document in the store."""
    counts = corpus.manifest["counts"]
    return {
        "digest": corpus.digest,
        "tokenizer": corpus.manifest["tokenizer"],
        "inputs": corpus.manifest["inputs"],
        "first_sentence_id": sentences,
        "first_document_id": documents,
        "sentences": counts["sentences"],
        "documents": counts["documents"],
        "tokens": counts["tokens"],
    }


def _here(
    kind: Callable[..., ShardEmbedder], arguments: Sequence[Any], jobs: Sequence[Job]
) -> Iterable[Info]:
    made = kind(*arguments)
    return (made(job) for job in jobs)


def _move(folder: Path, out: Path) -> None:
    """Make `folder` become `out`, in one step where both are on one file system."""
    out.parent.mkdir(parents=True, exist_ok=True)
    old = out.parent / f".{out.name}.{os.getpid()}"
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(folder, out)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with new_folder(out) as new:
            shutil.copytree(folder, new, dirs_exist_ok=True)
    shutil.rmtree(old, ignore_errors=True)
