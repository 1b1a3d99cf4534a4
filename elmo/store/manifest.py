"""The manifest of a store: what it holds, its origin, and its versions.

Each version is a file of its own, `__elmo/manifest-000001.json` and so on; the newest one counts.
None is ever changed, nor is any file that one names. In a store of schema 2 manifests and tables of
types lie beside the parts, under names with a leading underscore; they stay there, and versions
that are added to it name them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from elmo.data.shards import TokenizerEntry
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.io import records
from elmo.io.location import Location
from elmo.io.records import (
    Count,
    FileName,
    Sha256,
    digest,
    json_bytes,
)
from elmo.store.layout import SCHEMA_VERSION, Layout

INSIDE = "__elmo"  # the folder of all but parts: what reads a folder of Parquet passes it by
FIRST_MANIFEST = f"{INSIDE}/manifest-000001.json"
PartName = Annotated[str, Meta(pattern=r"\Apart-[0-9]{5,9}-[0-9a-f]{12}\.parquet\Z")]
TypesName = Annotated[
    str,
    Meta(
        pattern=r"\A(_types-[0-9]{5,9}-[0-9a-f]{12}\.parquet|types-[0-9]{5,9}-[0-9a-f]{12}\.types)\Z"
    ),
]
WRITTEN = re.compile(
    rf"(part|_types)-[0-9]{{5,9}}-[0-9a-f]{{12}}\.parquet|"
    rf"{INSIDE}/types-[0-9]{{5,9}}-[0-9a-f]{{12}}\.types"
)  # paths that only writers of stores give
_MANIFEST = re.compile(rf"(?:_|{INSIDE}/)manifest-([0-9]{{6}})\.json")
_OLD_SCHEMA = 2
_OLD_MANIFEST = "manifest.json"  # of schema 1
CARE_LIMIT = 1 << 29  # bytes of a manifest that maintenance reads, to make it smaller
_PART_BYTES = 832  # in a manifest: at most those of a part, without its shards
_SHARD_BYTES = 128  # and at most those of a shard's entry there, without its name


class SourceShard(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard that a part was embedded from."""

    file: FileName
    sha256: Sha256


class TypesEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of distinct tokens beside a part."""

    file: TypesName
    rows: Count
    bytes: Count
    sha256: Sha256

    @property
    def path(self) -> str:
        """Its path in the store's folder."""
        return self.file if self.file.startswith("_") else f"{INSIDE}/{self.file}"


class PartEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet file of sentences; `fingerprint` names all that its bytes follow from."""

    file: PartName
    split: Literal["train", "heldout"]
    sentences: Count
    tokens: Count
    row_groups: Count
    first_sentence_id: Count
    last_sentence_id: Count
    first_document_id: Count
    last_document_id: Count
    bytes: Count
    sha256: Sha256
    fingerprint: str
    types: TypesEntry
    shards: tuple[SourceShard, ...]

    @property
    def path(self) -> str:
        """Its path in the store's folder."""
        return self.file


class StoreSource(Struct, frozen=True, forbid_unknown_fields=True):
    """A folder of shards whose sentences the store holds, and which device embedded them."""

    digest: Sha256
    tokenizer: TokenizerEntry
    inputs: list[Any]
    first_sentence_id: Count
    first_document_id: Count
    sentences: Count
    documents: Count
    tokens: Count
    device: str


class ModelOf(Struct, frozen=True, forbid_unknown_fields=True):
    """The model that made the vectors, and its lineage."""

    digest: Sha256
    tokenizer: Tokenization
    training: dict[str, Any]


class MadeWith(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that are not in the layout."""

    layers: str
    precision: str


class StoreCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """Sums over the parts."""

    sentences: Count
    tokens: Count
    types: Count
    parts: Count
    bytes: Count


class StoreManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a store; `before` is the digest of the version it follows."""

    kind: Literal["store"]
    schema: int
    version: Annotated[int, Meta(ge=1, le=999_999)]
    made_by: str
    before: Sha256 | None
    layout: Layout
    model: ModelOf
    params: MadeWith
    sources: tuple[StoreSource, ...]
    parts: tuple[PartEntry, ...]
    counts: StoreCounts

    @property
    def digest(self) -> str:
        """The name of this version of this store."""
        return digest(msgspec.to_builtins(self))

    @property
    def path(self) -> str:
        """Its path in the store's folder."""
        return version_path(self.version, schema=self.schema)

    def problems(self) -> list[str]:
        """Return where the manifest contradicts itself, one line per contradiction."""
        wrong = []
        for name, number in msgspec.to_builtins(count_parts(self.parts)).items():
            counted = getattr(self.counts, name)
            if counted != number:
                wrong.append(f"counts {counted} {name}, its parts have {number}")
        for name in ("sentences", "tokens"):
            counted = getattr(self.counts, name)
            number = sum(getattr(source, name) for source in self.sources)
            if counted != number:
                wrong.append(f"counts {counted} {name}, its shards had {number}")
        return wrong


class _Head(Struct):
    kind: Any = None
    schema: Any = None


def new_manifest(
    *,
    layout: Layout,
    model: ModelOf,
    params: MadeWith,
    sources: Sequence[StoreSource],
    parts: Sequence[PartEntry],
    made_by: str,
    before: StoreManifest | None = None,
) -> StoreManifest:
    """A manifest of `parts`, in the order of their numbers; `before` is the version it follows."""
    ordered = tuple(sorted(parts, key=_number))
    return StoreManifest(
        kind="store",
        schema=SCHEMA_VERSION,
        version=1 if before is None else before.version + 1,
        made_by=made_by,
        before=None if before is None else before.digest,
        layout=layout,
        model=model,
        params=params,
        sources=tuple(sources),
        parts=ordered,
        counts=count_parts(ordered),
    )


def count_parts(parts: Sequence[PartEntry]) -> StoreCounts:
    """The sums over parts that a manifest states."""
    return StoreCounts(
        sentences=sum(part.sentences for part in parts),
        tokens=sum(part.tokens for part in parts),
        types=sum(part.types.rows for part in parts),
        parts=len(parts),
        bytes=sum(part.bytes + part.types.bytes for part in parts),
    )


def sizes_of(parts: Iterable[PartEntry]) -> list[tuple[str, int]]:
    """The files of parts, each with its bytes."""
    return [(entry.path, entry.bytes) for part in parts for entry in (part.types, part)]


def versions(location: Location) -> dict[int, str]:
    """The versions of a store that are there, oldest first, and the path of each.

    A folder, a pipe or a dangling link of that name counts: to read an older version instead would
    hide what has become of the newest.
    """
    paths = location.entries()
    paths += [f"{INSIDE}/{name}" for name in (location / INSIDE).entries()]
    matches = [_MANIFEST.fullmatch(path) for path in paths]
    return dict(sorted((int(match[1]), match[0]) for match in matches if match))


def files_of(location: Location) -> list[str]:
    """The paths of all files of a store's folder."""
    return [*location.names(), *(f"{INSIDE}/{name}" for name in (location / INSIDE).names())]


def check_size(
    location: Location,
    manifest: StoreManifest,
    parts: Iterable[Sequence[SourceShard]],
    *,
    remedy: str,
) -> None:
    """Refuse, before work begins, what would end in a manifest too large to be read.

    `manifest` is without parts, and `parts` has the shards of each; `remedy` ends the line.
    """
    sizes = [_part_bytes(shards) for shards in parts]
    size = len(_encoded(location, manifest)) + sum(sizes)
    if size > records.JSON_LIMIT:
        raise ElmoError(
            f"{location}: the manifest of {len(sizes):,} parts would take up to {size:,} bytes, "
            f"and at most {records.JSON_LIMIT:,} are read; {remedy}"
        )


def _part_bytes(shards: Sequence[SourceShard]) -> int:
    return _PART_BYTES + sum(_SHARD_BYTES + len(shard.file.encode()) for shard in shards)


def _encoded(location: Location, manifest: StoreManifest) -> bytes:
    source = location.name(manifest.path)
    return json_bytes(msgspec.to_builtins(manifest), source=source)


def read_manifest(
    location: Location, *, version: int | None = None, limit: int | None = None
) -> StoreManifest:
    """The newest version of a store's manifest, or a given one; `ElmoError` where it is none.

    One of more bytes than `limit` is refused, by default `elmo.io.records.JSON_LIMIT`.
    """
    for attempt in range(3):
        present = versions(location)
        if not present:
            raise _no_store(location)
        if version is not None and version not in present:
            raise ElmoError(f"{location}: has no version {version}; the newest is {max(present)}")
        chosen = max(present) if version is None else version
        try:
            return _read(location, chosen, present[chosen], limit)
        except (ElmoError, FileNotFoundError):
            if attempt == 2 or chosen in versions(location):
                raise  # else a newer version was published and this one pruned
    raise AssertionError


def publish(location: Location, manifest: StoreManifest) -> None:
    """Make `manifest` the newest version of a store.

    `ElmoError` where a file that it names is missing, or another writer has published that version;
    one that wrote the same succeeds.
    """
    present = set(files_of(location))
    for part in manifest.parts:
        for path in (part.path, part.types.path):
            if path not in present:
                raise ElmoError(
                    f"{location.name(path)}: vanished before it was published; run the same "
                    "command again"
                )
    data = _encoded(location, manifest)
    if not location.create(manifest.path, data) and location.read(manifest.path) != data:
        raise ElmoError(
            f"{location}: another process published version {manifest.version} meanwhile; its "
            "version stays, and this one is not added; run the same command again"
        )


def next_number(parts: Sequence[PartEntry]) -> int:
    """The number of the part that comes after `parts`."""
    return max(map(_number, parts), default=-1) + 1


def _number(part: PartEntry) -> int:
    return int(part.file.split("-")[1])


def version_path(version: int, *, schema: int = SCHEMA_VERSION) -> str:
    """The path of a version of the manifest, in the store's folder."""
    name = f"manifest-{version:06d}.json"
    return f"_{name}" if schema == _OLD_SCHEMA else f"{INSIDE}/{name}"


def _read(location: Location, version: int, name: str, limit: int | None) -> StoreManifest:
    source = location.name(name)
    try:
        head = location.record(name, _Head, limit=limit)
    except ElmoError as error:
        if limit is None and location.exists(name) and location.size(name) > records.JSON_LIMIT:
            raise ElmoError(f"{error}; join its parts: elmo compact {location}") from None
        raise
    if head.kind != "store":
        raise ElmoError(f"{source}: is not the manifest of a store")
    if head.schema != (_OLD_SCHEMA if name.startswith("_m") else SCHEMA_VERSION):
        raise ElmoError(_other_schema(source, head.schema))
    try:
        manifest = location.record(name, StoreManifest, limit=limit)
    except ElmoError as error:
        text = str(error)
        raise ElmoError(text if text.startswith(source) else f"{source}: layout: {text}") from None
    problems = manifest.problems()
    if manifest.version != version:
        problems.append(f"says version {manifest.version}")
    if problems:
        raise ElmoError(f"{source}: {'; '.join(problems)}; restore it or make the store again")
    return manifest


def _no_store(location: Location) -> ElmoError:
    if location.exists(_OLD_MANIFEST):
        head = location.record(_OLD_MANIFEST, _Head)
        if head.kind == "store":
            return ElmoError(_other_schema(location.name(_OLD_MANIFEST), head.schema))
    return ElmoError(f"{location.name(FIRST_MANIFEST)}: no such file; {location} is not a store")


def _other_schema(source: str, schema: object) -> str:
    return (
        f"{source}: has schema {str(schema)[:20]}, this version reads {SCHEMA_VERSION}; make the "
        "store again from its shards and model (elmo features), in another folder"
    )
