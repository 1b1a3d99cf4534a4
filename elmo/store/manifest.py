"""The manifest of a store: its content, and its inputs.

`__elmo/manifest.json` is written last, so a folder with one is a complete store. It names all other
files of the store, which never change.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from elmo.data.manifest import TokenizerEntry
from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError, Mismatch, NotFound, suggest_path
from elmo.io.location import Location
from elmo.io.records import Count, FileName, Header, Sha256, digest, json_bytes
from elmo.store.layout import STORE_SCHEMA_VERSION, Layout

INNER_FOLDER = "__elmo"  # with all files except parts; tools that read Parquet folders skip it
MANIFEST_PATH = f"{INNER_FOLDER}/manifest.json"
PartName = Annotated[str, Meta(pattern=r"\Apart-[0-9]{12,16}-[0-9a-f]{16}\.parquet\Z")]
TypesName = Annotated[str, Meta(pattern=r"\Atypes-[0-9a-f]{16}\.types\Z")]
STORE_FILES = (
    rf"part-[0-9]+-[0-9a-f]+\.parquet|_types-[0-9]+-[0-9a-f]+\.parquet|_manifest-[0-9]+\.json|"
    rf"{INNER_FOLDER}/(types-[0-9a-f-]+\.types|manifest(-[0-9]+)?\.json)"
)  # paths of the files of a store, also of earlier versions
_REMEDY = "make the store again from its shards and model (elmo run features)"


class SourceShard(Struct, frozen=True, forbid_unknown_fields=True):
    """The shard from which a part was embedded."""

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
        return f"{INNER_FOLDER}/{self.file}"


class PartEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a part, a Parquet file of sentences. `types` is the entry of its table
    of distinct tokens, and `shard` the shard that it was embedded from.

    `fingerprint` is a digest of everything that determines the part's vectors. The offsets were
    added to the ids in the shard's file; parts with equal fingerprints differ only in the offsets.
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
    sentence_offset: Count
    document_offset: Count
    bytes: Count
    sha256: Sha256
    fingerprint: str
    types: TypesEntry
    shard: SourceShard

    @property
    def path(self) -> str:
        """Return the path of the part within the store's folder."""
        return self.file


class StoreSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest entry of a shards folder whose sentences the store holds.

    `digest` is that of the folder's manifest, and `inputs` are the text files. `device` is the kind
    of device that embedded the sentences.
    """

    digest: Sha256
    tokenizer: TokenizerEntry
    inputs: list[Any]
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
    """The manifest entry of the settings besides the layout: `layers` as in the settings, such as
    `all`, and the `precision` of the computation."""

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
    """The manifest of a store; its parts are in the order of their names."""

    kind: Literal["store"]
    schema: int
    layout: Layout
    model: ModelEntry
    params: ParamsEntry
    source: StoreSource
    parts: tuple[PartEntry, ...]
    counts: StoreCounts

    @property
    def digest(self) -> str:
        """Return the digest of the manifest, which identifies the store."""
        return digest(msgspec.to_builtins(self))


def new_manifest(
    *,
    layout: Layout,
    model: ModelEntry,
    params: ParamsEntry,
    source: StoreSource,
    parts: Sequence[PartEntry],
) -> StoreManifest:
    """Return the manifest of a store with the given parts, in any order."""
    sorted_parts = tuple(sorted(parts, key=lambda part: part.file))
    return StoreManifest(
        kind="store",
        schema=STORE_SCHEMA_VERSION,
        layout=layout,
        model=model,
        params=params,
        source=source,
        parts=sorted_parts,
        counts=count_parts(sorted_parts),
    )


def count_parts(parts: Sequence[PartEntry]) -> StoreCounts:
    """Return the totals over parts, as a manifest states them."""
    sizes = {file.path: file.bytes for part in parts for file in (part.types, part)}
    return StoreCounts(
        sentences=sum(part.sentences for part in parts),
        tokens=sum(part.tokens for part in parts),
        types=sum(part.types.rows for part in parts),
        parts=len(parts),
        bytes=sum(sizes.values()),
    )


def list_paths(parts: Iterable[PartEntry]) -> list[str]:
    """Return the distinct paths, within the store's folder, of the files of the given parts."""
    return list(dict.fromkeys(entry.path for part in parts for entry in (part.types, part)))


def encode_manifest(location: Location, manifest: StoreManifest) -> bytes:
    """Return a manifest as the bytes of its file; `location`, the store's folder, is for errors."""
    return json_bytes(msgspec.to_builtins(manifest), source=location.path_of(MANIFEST_PATH))


def read_manifest(location: Location) -> StoreManifest:
    """Read the manifest of a store.

    Raises `NotFound` if there is none, `ElmoError` if it is invalid or of another version.
    """
    source = location.path_of(MANIFEST_PATH)
    try:
        header = location.read_record(MANIFEST_PATH, Header)
    except NotFound:
        raise _missing_store_error(location) from None
    if header.kind != "store":
        raise ElmoError(f"{source}: is not the manifest of a store; name another")
    header.check_version(source, "schema", STORE_SCHEMA_VERSION, remedy=_REMEDY)
    try:
        return location.read_record(MANIFEST_PATH, StoreManifest)
    except ElmoError as error:
        text = str(error)
        raise ElmoError(text if text.startswith(source) else f"{source}: layout: {text}") from None


def _missing_store_error(location: Location) -> ElmoError:
    """Return the exception for a folder without a manifest, or with those of an earlier version."""
    if location.local is not None and not os.path.lexists(location.local):
        suggestion = suggest_path(location.local, only_folders=True)
        return NotFound(f"{location}: no such folder{suggestion or '; pass the folder of a store'}")
    for former_manifest in (f"{INNER_FOLDER}/manifest-000001.json", "_manifest-000001.json"):
        if location.exists(former_manifest):
            return Mismatch(f"{location}: an earlier version of elmo made this store; {_REMEDY}")
    return NotFound(f"{location.path_of(MANIFEST_PATH)}: no such file; {location} is not a store")
