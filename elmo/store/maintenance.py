"""Store maintenance: verify, lineage, compact and prune."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elmo.errors import Damaged, ElmoError
from elmo.io.location import Folder, Location
from elmo.io.records import digest, sha256
from elmo.store.dtypes import DTYPES, SCALE_DTYPE
from elmo.store.layout import (
    TYPE_ID_DTYPE,
    Layout,
    layout_metadata,
    part_schema,
    types_schema,
)
from elmo.store.manifest import (
    MAINTENANCE_LIMIT,
    STORE_FILE,
    PartEntry,
    SourceShard,
    StoreManifest,
    TypesEntry,
    check_size,
    files_of,
    new_manifest,
    next_part_number,
    publish,
    read_manifest,
    sizes_of,
    versions,
)
from elmo.store.reader import check_layout, flat_values, open_parquet
from elmo.store.writer import (
    Origin,
    Rows,
    add_rows,
    part_writer,
    publish_part,
    publish_types,
    write_types,
)

_UNFINISHED_HOURS = 24  # at a URL, where nobody can tell whether a writer is alive


def verify(store: Folder, *, version: int | None = None) -> StoreManifest:
    """Check every checksum and count of a store, in its newest version or in `version`; return its
    manifest.

    `ElmoError` lists the problems found, the first 20 of them, on one line.
    """
    location = Location.of(store)
    lines = list(problems(location, version=version))
    if lines:
        more = f" (and {len(lines) - 20} more)" if len(lines) > 20 else ""
        raise ElmoError("; ".join(lines[:20]) + more)
    return read_manifest(location, version=version)


def problems(store: Folder, *, version: int | None = None) -> Iterator[str]:
    """Read all bytes of a store, in its newest version or in `version`, and yield a line for each
    problem found."""
    location = Location.of(store)
    manifest = read_manifest(location, version=version)
    name = location.name(manifest.path)
    yield from _broken_chain(location)
    ids = [np.empty(0, np.int64)]
    for part in manifest.parts:
        damaged = [*_damage(location, part), *_damage(location, part.types)]
        yield from damaged
        if damaged:
            continue
        yield from _mismatches(location, part, manifest.layout, ids)
    whole = len(ids) == len(manifest.parts) + 1
    all_ids = np.sort(np.concatenate(ids))
    twice = np.unique(all_ids[1:][all_ids[1:] == all_ids[:-1]])
    if len(twice):
        yield f"{name}: sentence {twice[0]} is there twice ({len(twice)} such)"
    elif whole and not np.array_equal(all_ids, np.arange(len(all_ids))):
        missing = int(np.argmax(all_ids != np.arange(len(all_ids))))
        yield f"{name}: sentence {missing} is in no part"


def lineage(store: Folder, *, version: int | None = None) -> dict[str, Any]:
    """Return the model, corpus, settings and counts that a store was made from, in its newest
    version or in `version`, as a dictionary for JSON."""
    manifest = read_manifest(Location.of(store), version=version)
    training = manifest.model.training
    sources = msgspec.to_builtins(manifest.sources)
    keys = ("digest", "tokenizer", "inputs", "sentences", "tokens", "device")
    return {
        "store": manifest.digest,
        "version": manifest.version,
        "model": manifest.model.digest,
        "training": training,
        "corpus": [{key: corpus[key] for key in keys} for corpus in sources],
        "settings": {
            **msgspec.to_builtins(manifest.layout),
            **msgspec.to_builtins(manifest.params),
        },
        "counts": msgspec.to_builtins(manifest.counts),
    }


def compact(store: Folder, *, part_tokens: int) -> StoreManifest:
    """Join neighbouring parts of a split into parts of at most `part_tokens` tokens.

    The vectors stay the same, bit for bit. The result is a new version; `prune` deletes the files
    of the old one. Return the new manifest, or the present one if there is nothing to join.
    """
    if part_tokens < 1:
        raise ElmoError(f"part_tokens must be 1 or more, found {part_tokens}")
    location = Location.of(store)
    before = read_manifest(location, limit=MAINTENANCE_LIMIT)
    runs = _runs(before.parts, part_tokens)
    if len(runs) == len(before.parts):
        location.sweep()
        return before
    described = partial(
        new_manifest,
        layout=before.layout,
        model=before.model,
        params=before.params,
        sources=before.sources,
        made_by="compact",
        before=before,
    )
    shards_of = [_shards(run) for run in runs]
    check_size(location, described(parts=[]), shards_of, remedy="join more: raise --part-tokens")
    location.check_all(sizes_of(before.parts))  # also those that stay: the new version names them
    number = next_part_number(before.parts)
    parts = []
    new: list[str] = []
    with location.writing():
        try:
            for run in runs:
                if len(run) == 1:
                    parts.append(run[0])
                    continue
                joined = _join(location, run, number, before.layout, new)
                parts.append(joined)
                number += 1
            manifest = described(parts=parts)
            publish(location, manifest)
        except BaseException:
            # unless an equal compaction has published it meanwhile
            location.delete_all(set(new) - _files(location, versions(location)))
            raise
    return manifest


def prune(store: Folder, *, keep: int = 1) -> list[str]:
    """Delete all but the last `keep` versions, and the files that only deleted versions name.

    Files left by interrupted work are deleted too, unless a running process may still publish them;
    files that no store writer created are kept. If a file of a kept version is missing or
    truncated, `ElmoError` is raised and nothing is deleted. Return the names of the deleted files.
    """
    if keep < 1:
        raise ElmoError(f"keep must be 1 or more, found {keep}")
    location = Location.of(store)
    with location.undisturbed() as alone:
        present = versions(location)
        if not present:
            raise ElmoError(f"{location.url}: has no manifest of a store; pass a store's folder")
        kept, dropped = list(present)[-keep:], list(present)[:-keep]
        for version in kept:  # before what they came from is deleted
            manifest = read_manifest(location, version=version, limit=MAINTENANCE_LIMIT)
            location.check_all(sizes_of(manifest.parts))
        named, unneeded = _files(location, kept), _files(location, dropped)
        deleted = [present[version] for version in dropped]
        for name in files_of(location):
            if not STORE_FILE.fullmatch(name) or name in named:
                continue
            if name in unneeded or not _unfinished(location, name, not alone):
                deleted.append(name)
        for name in deleted[: len(dropped)]:  # manifests first: none names a file that is gone
            location.delete(name)
        location.delete_all(deleted[len(dropped) :])
        return sorted([*deleted, *location.sweep()])


def _files(location: Location, chosen: Iterable[int]) -> set[str]:
    """Return the paths of the files that the given versions name."""
    manifests = [read_manifest(location, version=v, limit=MAINTENANCE_LIMIT) for v in chosen]
    parts = [part for manifest in manifests for part in manifest.parts]
    return {path for part in parts for path in (part.path, part.types.path)}


def _unfinished(location: Location, name: str, busy: bool) -> bool:
    """Tell whether a file that no version names may belong to a version being written."""
    if location.local is not None:
        return busy
    try:
        return location.age(name) < _UNFINISHED_HOURS * 3600
    except FileNotFoundError:
        return True


def _broken_chain(location: Location) -> Iterator[str]:
    """Yield a line for each version that does not follow its predecessor."""
    older: StoreManifest | None = None
    for version, path in versions(location).items():
        try:
            manifest = read_manifest(location, version=version, limit=MAINTENANCE_LIMIT)
        except ElmoError as error:
            yield str(error)
            older = None
            continue
        name = location.name(path)
        if (manifest.before is None) != (version == 1):
            yield f"{name}: version {version} must name the version before it, and only it"
        elif older is not None and older.version == version - 1 and older.digest != manifest.before:
            yield f"{name}: does not follow version {version - 1}, which was altered or exchanged"
        older = manifest


def _damage(location: Location, entry: PartEntry | TypesEntry) -> list[str]:
    """Return the problems with a file's bytes, located as closely as its checksums allow."""
    try:
        location.check(entry.path, size=entry.bytes)
    except ElmoError as error:
        return [str(error)]
    if location.sha256(entry.path) == entry.sha256:
        return []
    name = location.name(entry.path)
    try:
        file = open_parquet(location, entry.path, checksums=True)
        columns = file.schema_arrow.names
    except (ElmoError, pa.ArrowException, ValueError):
        return [f"{name}: altered in its footer"]
    lines = []
    for group in range(file.num_row_groups):
        for column in columns:
            try:
                file.read_row_group(group, [column])
            except (pa.ArrowException, OSError, ValueError):
                lines.append(f"{name}: altered in row group {group}, column {column}")
    return lines or [f"{name}: altered (its sha256 is not the manifest's)"]


def _mismatches(
    location: Location, part: PartEntry, layout: Layout, ids: list[npt.NDArray[np.int64]]
) -> Iterator[str]:
    """Yield the differences between an undamaged part and the manifest; append its ids to `ids`."""
    name = location.name(part.file)
    file = open_parquet(location, part.file)
    table_of_types = open_parquet(location, part.types.path)
    type_count = table_of_types.metadata.num_rows
    widths = {name: layout.width for name in layout.contextual} | {"types": 4}
    if layout.dtype == "int8":
        widths |= {f"{name}_scale": 4 for name in layout.contextual}
    wanted = ["sentence_id", "document_id", "length", *widths]
    absent = [column for column in wanted if column not in file.schema_arrow.names]
    if absent:
        yield f"{name}: has no column {absent[0]}"
        return
    own, documents = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tokens, largest = 0, -1
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, wanted)
        lengths = table["length"].to_numpy()
        own.append(table["sentence_id"].to_numpy())
        documents.append(table["document_id"].to_numpy())
        tokens += int(lengths.sum())
        largest = max(largest, int(flat_values(table["types"], TYPE_ID_DTYPE).max(initial=-1)))
        for column, width in widths.items():
            sizes = pc.binary_length(table[column]).to_numpy()
            if (sizes != lengths * width).any():
                yield f"{name}: row group {group}, column {column} does not fit the lengths"
    sentence_ids, document_ids = np.concatenate(own), np.concatenate(documents)
    counted = {
        "sentences": (len(sentence_ids), part.sentences),
        "tokens": (tokens, part.tokens),
        "types": (type_count, part.types.rows),
        "row groups": (file.num_row_groups, part.row_groups),
    }
    if len(sentence_ids):
        counted |= {
            "first sentence": (int(sentence_ids[0]), part.first_sentence_id),
            "last sentence": (int(sentence_ids[-1]), part.last_sentence_id),
            "first document": (int(document_ids.min()), part.first_document_id),
            "last document": (int(document_ids.max()), part.last_document_id),
        }
    for what, (number, recorded) in counted.items():
        if number != recorded:
            yield f"{name}: {what}: {number}, the manifest says {recorded}"
    if (np.diff(sentence_ids) <= 0).any():
        yield f"{name}: its sentences are not in order"
    if largest >= type_count:
        yield f"{name}: names type {largest}, {part.types.file} has {type_count}"
    footer = {key: value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
    stated = {"fingerprint": part.fingerprint, "split": part.split, **layout_metadata(layout)}
    for key, value in stated.items():
        if footer.get(f"elmo.{key}".encode()) != value:
            yield f"{name}: its {key} is not the manifest's"
    ids.append(sentence_ids)


def _runs(parts: Sequence[PartEntry], part_tokens: int) -> list[list[PartEntry]]:
    """Group parts to be joined: neighbours of one split with at most `part_tokens` tokens in
    all."""
    runs: list[list[PartEntry]] = []
    for part in sorted(parts, key=lambda part: (part.split, part.first_sentence_id)):
        run = runs[-1] if runs else []
        tokens = sum(other.tokens for other in run) + part.tokens
        if run and run[0].split == part.split and tokens <= part_tokens:
            run.append(part)
        else:
            runs.append([part])
    return runs


def _shards(run: Sequence[PartEntry]) -> tuple[SourceShard, ...]:
    """Return the shards from which the parts of a run were embedded."""
    return tuple(dict.fromkeys(shard for part in run for shard in part.shards))


def _join(
    location: Location, run: Sequence[PartEntry], number: int, layout: Layout, new: list[str]
) -> PartEntry:
    """Write part `number` with the content of the parts in `run`, after checking their SHA-256.

    Append the paths of newly created files to `new`.
    """
    fingerprint = digest(["join", [part.fingerprint for part in run]])
    origin = Origin(run[0].split, fingerprint, _shards(run), {})
    present = set(files_of(location))
    with ExitStack() as stack:
        copies = []
        for part in run:
            for file in (part.types, part):
                location.check(file.path, size=file.bytes)
                path = stack.enter_context(location.local_copy(file.path))
                if sha256(path) != file.sha256:
                    raise Damaged(
                        f"{location.name(file.path)}: altered (its sha256 is not the manifest's), "
                        "so nothing is joined; elmo verify says where; restore it first"
                    )
                check_layout(location.name(file.path), pq.read_schema(path), layout)
                copies.append(path)
        tables = [pq.read_table(path, partitioning=None) for path in copies[::2]]
        types, columns, rows_of = _join_types(tables, layout)
        with location.temporary() as path:
            schema = types_schema(layout, metadata=origin.footer)
            write_types(path, schema, layout, types, columns)
            entry = publish_types(location, path, number)
        new += [] if entry.path in present else [entry.path]
        schema = part_schema(layout, types_file=entry.path, metadata=origin.footer)
        with location.temporary() as path:
            with part_writer(path, schema, layout) as writer:
                for source, new_type_ids in zip(copies[1::2], rows_of, strict=True):
                    with pq.ParquetFile(source, page_checksum_verification=True) as parquet:
                        for group in range(parquet.num_row_groups):
                            _copy(
                                parquet.read_row_group(group), writer, types, new_type_ids, layout
                            )
            joined = publish_part(location, path, number, types_entry=entry, origin=origin)
        new += [] if joined.path in present else [joined.path]
    return joined


def _join_types(
    tables: Sequence[pa.Table], layout: Layout
) -> tuple[pa.StringArray, dict[str, npt.NDArray[Any]], list[npt.NDArray[np.int32]]]:
    """Return the distinct tokens of several parts, and the new type ids of each part's old ones.

    A token is kept twice if its vectors in two parts differ, even in the last bit.
    """
    known: dict[tuple[Any, ...], int] = {}
    rows_of = []
    for table in tables:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        rows_of.append(np.array([known.setdefault(row, len(known)) for row in rows], np.int32))
    columns: dict[str, npt.NDArray[Any]] = {}
    if "layer_0" in layout.layers:
        data = b"".join(row[1] for row in known)
        columns["layer_0"] = np.frombuffer(data, DTYPES[layout.dtype]).reshape(
            len(known), layout.dim // 2
        )
        if layout.dtype == "int8":
            columns["layer_0_scale"] = np.array([row[2] for row in known], SCALE_DTYPE)
    return pa.array([row[0] for row in known], pa.string()), columns, rows_of


def _copy(
    table: pa.Table,
    writer: pq.ParquetWriter,
    types: pa.StringArray,
    new_type_ids: npt.NDArray[np.int32],
    layout: Layout,
) -> None:
    lengths = table["length"].to_numpy()
    rows = Rows(
        table["sentence_id"].to_numpy(),
        table["document_id"].to_numpy(),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        new_type_ids[flat_values(table["types"], TYPE_ID_DTYPE)],
        types,
    )
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in layout.contextual:
        columns[name] = flat_values(table[name], DTYPES[layout.dtype]).reshape(-1, layout.dim)
        if layout.dtype == "int8":
            columns[f"{name}_scale"] = flat_values(table[f"{name}_scale"], SCALE_DTYPE)
    add_rows(writer, rows, columns, layout)
