"""Checks of a store, file by file, and what it was made from."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.errors import ElmoError
from elmo.io.location import Folder, Location
from elmo.store.layout import TYPE_ID_DTYPE, Layout, layout_metadata
from elmo.store.manifest import MANIFEST, PartEntry, StoreManifest, TypesEntry, read_manifest
from elmo.store.reader import flat_values, open_parquet


def verify(store: Folder) -> StoreManifest:
    """Check every checksum and count of a store; return its manifest.

    `ElmoError` lists the problems found, the first 20 of them, on one line.
    """
    location = Location.of(store)
    lines = list(problems(location))
    if lines:
        remainder = f" (and {len(lines) - 20} more)" if len(lines) > 20 else ""
        raise ElmoError("; ".join(lines[:20]) + remainder)
    return read_manifest(location)


def problems(store: Folder) -> Iterator[str]:
    """Read all bytes of a store, and yield a line for each problem found."""
    location = Location.of(store)
    manifest = read_manifest(location)
    name = location.name(MANIFEST)
    ids = [np.empty(0, np.int64)]
    for part in manifest.parts:
        damaged = [*_damage(location, part), *_damage(location, part.types)]
        yield from damaged
        if damaged:
            continue
        yield from _compare_part(location, part, manifest.layout, ids)
    is_complete = len(ids) == len(manifest.parts) + 1
    all_ids = np.sort(np.concatenate(ids))
    repeated_ids = np.unique(all_ids[1:][all_ids[1:] == all_ids[:-1]])
    if len(repeated_ids):
        yield f"{name}: sentence {repeated_ids[0]} is there twice ({len(repeated_ids)} such)"
    elif is_complete and not np.array_equal(all_ids, np.arange(len(all_ids))):
        missing_id = int(np.argmax(all_ids != np.arange(len(all_ids))))
        yield f"{name}: sentence {missing_id} is in no part"


def lineage(store: Folder) -> dict[str, Any]:
    """Return the model, corpus, settings and counts that a store was made from, as a dictionary for
    JSON."""
    manifest = read_manifest(Location.of(store))
    source = msgspec.to_builtins(manifest.source)
    keys = ("digest", "tokenizer", "inputs", "sentences", "tokens", "device")
    return {
        "store": manifest.digest,
        "model": manifest.model.digest,
        "training": manifest.model.training,
        "corpus": {key: source[key] for key in keys},
        "settings": {
            **msgspec.to_builtins(manifest.layout),
            **msgspec.to_builtins(manifest.params),
        },
        "counts": msgspec.to_builtins(manifest.counts),
    }


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


def _compare_part(
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
    columns = ["sentence_id", "document_id", "length", *widths]
    absent = [column for column in columns if column not in file.schema_arrow.names]
    if absent:
        yield f"{name}: has no column {absent[0]}"
        return
    id_chunks, document_chunks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    tokens, largest = 0, -1
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns)
        lengths = table["length"].to_numpy()
        id_chunks.append(table["sentence_id"].to_numpy())
        document_chunks.append(table["document_id"].to_numpy())
        tokens += int(lengths.sum())
        largest = max(largest, int(flat_values(table["types"], TYPE_ID_DTYPE).max(initial=-1)))
        for column, width in widths.items():
            sizes = pc.binary_length(table[column]).to_numpy()
            if (sizes != lengths * width).any():
                yield f"{name}: row group {group}, column {column} does not fit the lengths"
    sentence_ids, document_ids = np.concatenate(id_chunks), np.concatenate(document_chunks)
    counts = {
        "sentences": (len(sentence_ids), part.sentences),
        "tokens": (tokens, part.tokens),
        "types": (type_count, part.types.rows),
        "row groups": (file.num_row_groups, part.row_groups),
    }
    if len(sentence_ids):
        counts |= {
            "first sentence": (int(sentence_ids[0]), part.first_sentence_id),
            "last sentence": (int(sentence_ids[-1]), part.last_sentence_id),
            "first document": (int(document_ids.min()), part.first_document_id),
            "last document": (int(document_ids.max()), part.last_document_id),
        }
    for name_of_count, (number, recorded) in counts.items():
        if number != recorded:
            yield f"{name}: {name_of_count}: {number}, the manifest says {recorded}"
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
