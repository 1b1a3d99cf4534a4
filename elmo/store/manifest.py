"""The manifest of a store: its content, origin and versions.

Each version has its own manifest, `__elmo/manifest-000001.json` and so on; readers use the newest.
Manifests, and files that a manifest names, never change. In a store of schema 2, manifests and
tables of types lie beside the parts, under names that begin with an underscore; they stay there,
and later versions refer to them.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from elmo.data.manifest import TokenizerEntry
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError, NotFound, similar_path
from elmo.io import records
from elmo.io.location import Location
from elmo.io.records import (
    Count,
    FileName,
    Header,
    Sha256,
    digest,
    json_bytes,
)
from elmo.store.layout import SCHEMA_VERSION, Layout

INNER_FOLDER = "__elmo"  # of all files but parts; readers of a folder of Parquet pass it by
FIRST_MANIFEST = f"{INNER_FOLDER}/manifest-000001.json"
PartName = Annotated[str, Meta(pattern=r"\Apart-[0-9]{5,9}-[0-9a-f]{12}\.parquet\Z")]
TypesName = Annotated[
    str,
    Meta(
        pattern=r"\A(_types-[0-9]{5,9}-[0-9a-f]{12}\.parquet|types-[0-9]{5,9}-[0-9a-f]{12}\.types)\Z"
    ),
]
STORE_FILE = re.compile(
    rf"(part|_types)-[0-9]{{5,9}}-[0-9a-f]{{12}}\.parquet|"
    rf"{INNER_FOLDER}/types-[0-9]{{5,9}}-[0-9a-f]{{12}}\.types"
)  # the path of a part or table of types, within the store's folder
_MANIFEST = re.compile(rf"(?:_|{INNER_FOLDER}/)manifest-([0-9]{{6}})\.json")
_OLD_SCHEMA = 2
_OLD_MANIFEST = "manifest.json"  # of schema 1
_AGAIN = "make the store again from its shards and model (elmo features), in another folder"
MAINTENANCE_LIMIT = 1 << 29  # bytes of a manifest that maintenance reads, to make it smaller
_PART_BYTES = 832  # in a manifest: at most those of a part, without its shards
_SHARD_BYTES = 128  # and at most those of a shard's entry there, without its name


class SourceShard(Struct, frozen=True, forbid_unknown_fields=True):
    """A shard from which a part was embedded."""

    file: FileName
    sha256: Sha256


class TypesEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a part's table of distinct tokens; `rows` is their number."""

    file: TypesName
    rows: Count
    bytes: Count
    sha256: Sha256

    @property
    def path(self) -> str:
        """Return the path of the table within the store's folder."""
        return self.file if self.file.startswith("_") else f"{INNER_FOLDER}/{self.file}"


class PartEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a part, a Parquet file of sentences, with that of its table of distinct
    tokens (`types`) and the shards it was embedded from.

    `fingerprint` is a digest of everything that determines the part's content.
    """

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
        """Return the path of the part within the store's folder."""
        return self.file


class StoreSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a shards folder whose sentences the store holds.

    `digest` is that of the folder's manifest, and `inputs` are the files of its text. The first ids
    are those that its first sentence and document have in the store. `device` is the kind of device
    that embedded them.
    """

    digest: Sha256
    tokenizer: TokenizerEntry
    inputs: list[Any]
    first_sentence_id: Count
    first_document_id: Count
    sentences: Count
    documents: Count
    tokens: Count
    device: str


class ModelEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of the model that made the vectors, with its training record."""

    digest: Sha256
    tokenizer: Tokenization
    training: dict[str, Any]


class ParamsEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of the settings that the store was made with, but for the layout: `layers`
    as they were chosen, such as `all`, and the `precision` of the computation."""

    layers: str
    precision: str


class StoreCounts(Struct, frozen=True, forbid_unknown_fields=True):
    """The totals over all parts; a type, a distinct token, counts once in each part that has it."""

    sentences: Count
    tokens: Count
    types: Count
    parts: Count
    bytes: Count


class StoreManifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest of one version of a store; `made_by` is `build`, `append` or `compact`, and
    `before` the digest of the preceding version (None: the first)."""

    kind: Literal["store"]
    schema: int
    version: Annotated[int, Meta(ge=1, le=999_999)]
    made_by: str
    before: Sha256 | None
    layout: Layout
    model: ModelEntry
    params: ParamsEntry
    sources: tuple[StoreSource, ...]
    parts: tuple[PartEntry, ...]
    counts: StoreCounts

    @property
    def digest(self) -> str:
        """Return the digest of the manifest, which identifies this version of this store."""
        return digest(msgspec.to_builtins(self))

    @property
    def path(self) -> str:
        """Return the path of the manifest within the store's folder."""
        return version_path(self.version, schema=self.schema)

    def problems(self) -> list[str]:
        """Return one line for each contradiction within the manifest."""
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


def new_manifest(
    *,
    layout: Layout,
    model: ModelEntry,
    params: ParamsEntry,
    sources: Sequence[StoreSource],
    parts: Sequence[PartEntry],
    made_by: str,
    before: StoreManifest | None = None,
) -> StoreManifest:
    """Return the manifest of a new version with the given parts, sorted by their numbers.

    `made_by` is `build`, `append` or `compact`. `before` is the preceding version, or None for a
    new store.
    """
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
    """Return the totals over parts, as a manifest states them."""
    return StoreCounts(
        sentences=sum(part.sentences for part in parts),
        tokens=sum(part.tokens for part in parts),
        types=sum(part.types.rows for part in parts),
        parts=len(parts),
        bytes=sum(part.bytes + part.types.bytes for part in parts),
    )


def sizes_of(parts: Iterable[PartEntry]) -> list[tuple[str, int]]:
    """Return the path and size in bytes of each file of the given parts."""
    return [(entry.path, entry.bytes) for part in parts for entry in (part.types, part)]


def versions(location: Location) -> dict[int, str]:
    """Return the path of the manifest of each existing version, by version number, oldest first.

    Anything with a manifest's name counts, even a folder or a dangling link: ignoring it would
    silently fall back to an older version.
    """
    paths = location.entries()
    paths += [f"{INNER_FOLDER}/{name}" for name in (location / INNER_FOLDER).entries()]
    matches = [_MANIFEST.fullmatch(path) for path in paths]
    return dict(sorted((int(match[1]), match[0]) for match in matches if match))


def files_of(location: Location) -> list[str]:
    """Return the paths, within a store's folder, of all files there and in its inner folder."""
    inner = (location / INNER_FOLDER).names()
    return [*location.names(), *(f"{INNER_FOLDER}/{name}" for name in inner)]


def check_size(
    location: Location,
    manifest: StoreManifest,
    parts: Iterable[Sequence[SourceShard]],
    *,
    remedy: str,
) -> None:
    """Raise `ElmoError` if the manifest to be written would be too large to be read.

    `manifest` has no parts yet; `parts` gives the source shards of each part to come. `remedy` ends
    the error message. Call it before the work begins.
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
    """Read a version of a store's manifest, by default the newest.

    `ElmoError` is raised if there is none, it is invalid or it is larger than `limit` bytes
    (default: `elmo.io.records.JSON_LIMIT`).
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
    """Write `manifest` as the newest version of a store.

    `ElmoError` is raised if a file it names is missing, or if another writer has published that
    version with other content.
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


def next_part_number(parts: Sequence[PartEntry]) -> int:
    """Return the number of the part that follows `parts`."""
    return max(map(_number, parts), default=-1) + 1


def _number(part: PartEntry) -> int:
    return int(part.file.split("-")[1])


def version_path(version: int, *, schema: int = SCHEMA_VERSION) -> str:
    """Return the path of the manifest of version number `version` within the store's folder; it
    depends on the version of the files' form, `schema`."""
    name = f"manifest-{version:06d}.json"
    return f"_{name}" if schema == _OLD_SCHEMA else f"{INNER_FOLDER}/{name}"


def _read(location: Location, version: int, name: str, limit: int | None) -> StoreManifest:
    source = location.name(name)
    try:
        head = location.read_record(name, Header, limit=limit)
    except ElmoError as error:
        if limit is None and location.exists(name) and location.size(name) > records.JSON_LIMIT:
            raise ElmoError(f"{error}; join its parts: elmo compact {location}") from None
        raise
    if head.kind != "store":
        raise ElmoError(f"{source}: is not the manifest of a store")
    if not (head.schema == _OLD_SCHEMA and name.startswith("_m")):
        head.check_version(source, "schema", SCHEMA_VERSION, again=_AGAIN)
    try:
        manifest = location.read_record(name, StoreManifest, limit=limit)
    except ElmoError as error:
        text = str(error)
        raise ElmoError(text if text.startswith(source) else f"{source}: layout: {text}") from None
    problems = manifest.problems()
    if manifest.version != version:
        problems.append(f"says version {manifest.version}")
    if problems:
        raise ElmoError(f"{source}: {'; '.join(problems)}; restore it or make the store again")
    return manifest


def _no_store(location: Location) -> NotFound:
    """Return the exception for a folder without a store, or raise that for one of schema 1."""
    if location.exists(_OLD_MANIFEST):
        head = location.read_record(_OLD_MANIFEST, Header)
        if head.kind == "store":
            head.check_version(location.name(_OLD_MANIFEST), "schema", SCHEMA_VERSION, again=_AGAIN)
    if location.local and not os.path.lexists(location.local):
        near = similar_path(location.local, folders=True)
        return NotFound(f"{location}: no such folder{near or '; pass the folder of a store'}")
    return NotFound(f"{location.name(FIRST_MANIFEST)}: no such file; {location} is not a store")
