"""Looks after stores: checks them, says what made them, joins small parts, drops old versions."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elmo.errors import ElmoError
from elmo.files import digest, read_json
from elmo.store_layout import DTYPES, ENTRY, SCALE, Layout, part_schema, types_schema
from elmo.store_manifest import (
    MANIFEST,
    new_manifest,
    next_number,
    publish,
    read_manifest,
    version_name,
    versions,
)
from elmo.store_place import Place
from elmo.store_read import flat
from elmo.store_write import PartWriter, Rows, describe_part, part_names, write_types

Info = dict[str, Any]


def verify(path: str | Path, *, version: int | None = None) -> Info:
    """Check every checksum and count of a store; return its manifest.

    `ElmoError` names all that is wrong, on one line.
    """
    found = list(problems(path, version=version))
    if found:
        more = f" (and {len(found) - 20} more)" if len(found) > 20 else ""
        raise ElmoError("; ".join(found[:20]) + more)
    return read_manifest(Place(path), version=version)


def problems(path: str | Path, *, version: int | None = None) -> Iterator[str]:
    """Yield a line for each thing that is wrong with a store, after reading all of its bytes."""
    place = Place(path)
    manifest = read_manifest(place, version=version)
    layout = Layout.from_dict(manifest["layout"])
    ids = [np.empty(0, np.int64)]
    for part in manifest["parts"]:
        damaged = [*_damage(place, part), *_damage(place, part["types"])]
        yield from damaged
        if not damaged:
            yield from _mismatches(place, part, layout, ids)
    every = np.sort(np.concatenate(ids))
    twice = np.unique(every[1:][every[1:] == every[:-1]])
    if len(twice):
        yield f"{place.url}: sentence {twice[0]} is there twice ({len(twice)} such)"
    for name in ("sentences", "tokens"):
        said = sum(source[name] for source in manifest["sources"])
        if manifest["counts"][name] != said:
            yield (
                f"{place.name(MANIFEST)}: counts {manifest['counts'][name]} {name}, "
                f"its shards had {said}"
            )


def lineage(path: str | Path, *, version: int | None = None) -> Info:
    """Which model, run, corpus and settings made a store."""
    manifest = read_manifest(Place(path), version=version)
    training = manifest["model"]["training"]
    return {
        "store": digest(manifest),
        "version": manifest["version"],
        "model": manifest["model"]["digest"],
        "run": training.get("run_id"),
        "training": training,
        "corpus": [
            {key: source[key] for key in ("digest", "tokenizer", "inputs", "sentences", "tokens")}
            for source in manifest["sources"]
        ],
        "settings": {**manifest["layout"], **manifest["params"]},
        "counts": manifest["counts"],
    }


def compact(folder: Path, *, part_tokens: int) -> Info:
    """Join neighbouring parts of a split into ones of at most `part_tokens` tokens.

    The vectors stay the same bit for bit. It makes a new version; `prune` frees the space of the
    one before. Returns the manifest, the old one where there was nothing to join.
    """
    before = read_manifest(Place(folder))
    layout = Layout.from_dict(before["layout"])
    number, parts = next_number(folder), []
    for run in _runs(before["parts"], part_tokens):
        if len(run) == 1:
            parts.append(run[0])
            continue
        parts.append(_join(folder, run, number, layout))
        number += 1
    if len(parts) == len(before["parts"]):
        return before
    manifest = new_manifest(
        layout=layout,
        model=before["model"],
        params=before["params"],
        sources=before["sources"],
        parts=parts,
        made_by="compact",
        before=before,
    )
    publish(folder, manifest)
    return manifest


def prune(folder: Path, *, keep: int = 1) -> list[str]:
    """Delete all versions but the last `keep`, and all files of theirs that no kept one names.

    Also what interrupted work left behind. Returns the names of what was deleted.
    """
    if keep < 1:
        raise ElmoError(f"keep must be 1 or more, found {keep}")
    found = versions(folder)
    kept = list(found)[-keep:]
    named = {MANIFEST, *(version_name(version) for version in kept)}
    for version in kept:
        for part in read_json(found[version])["parts"]:
            named |= {part["file"], part["types"]["file"]}
    gone = []
    for path in sorted(folder.iterdir()):
        ours = path.name.startswith(("part-", "types-", "manifest-", ".append-", ".part", ".types"))
        if ours and path.name not in named:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            gone.append(path.name)
    return gone


def _damage(place: Place, entry: Info) -> list[str]:
    """What is wrong with the bytes of a file, as near to the place as its checksums tell."""
    try:
        place.check(entry["file"], size=entry["bytes"])
    except ElmoError as error:
        return [str(error)]
    if place.sha256(entry["file"]) == entry["sha256"]:
        return []
    name = place.name(entry["file"])
    try:
        file = place.parquet(entry["file"], checksums=True)
    except ElmoError:
        return [f"{name}: altered in its footer"]
    found = []
    for group in range(file.num_row_groups):
        for column in file.schema_arrow.names:
            try:
                file.read_row_group(group, [column])
            except (pa.ArrowException, OSError):
                found.append(f"{name}: altered in row group {group}, column {column}")
    return found or [f"{name}: altered (its sha256 is not the manifest's)"]


def _mismatches(
    place: Place, part: Info, layout: Layout, ids: list[npt.NDArray[np.int64]]
) -> Iterator[str]:
    """Where an undamaged part's content is not what the manifest says; adds its ids to `ids`."""
    name = place.name(part["file"])
    file = place.parquet(part["file"])
    types = place.parquet(part["types"]["file"]).metadata.num_rows
    said = {"sentences": part["sentences"], "tokens": part["tokens"], "types": types}
    widths = {name: layout.width for name in layout.contextual} | {"types": 4}
    if layout.dtype == "int8":
        widths |= {f"{name}_scale": 4 for name in layout.contextual}
    own, tokens, largest = [np.empty(0, np.int64)], 0, -1
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, ["sentence_id", "length", *widths])
        lengths = table["length"].to_numpy()
        own.append(table["sentence_id"].to_numpy())
        tokens += int(lengths.sum())
        largest = max(largest, int(flat(table["types"], ENTRY).max(initial=-1)))
        for column, width in widths.items():
            sizes = pc.binary_length(table[column]).to_numpy()
            if (sizes != lengths * width).any():
                yield f"{name}: row group {group}, column {column} does not fit the lengths"
    every = np.concatenate(own)
    found = {"sentences": len(every), "tokens": tokens, "types": part["types"]["rows"]}
    for what, number in found.items():
        if number != said[what]:
            yield f"{name}: has {number} {what}, expected {said[what]}"
    if (np.diff(every) <= 0).any():
        yield f"{name}: its sentences are not in order"
    if largest >= types:
        yield f"{name}: names type {largest}, {part['types']['file']} has {types}"
    footer = (file.schema_arrow.metadata or {}).get(b"elmo.fingerprint", b"").decode()
    if footer != part["fingerprint"]:
        yield f"{name}: its fingerprint is not the manifest's"
    ids.append(every)


def _runs(parts: Sequence[Info], part_tokens: int) -> list[list[Info]]:
    """Parts in runs to be joined: of one split, in order, of at most `part_tokens` together."""
    found: list[list[Info]] = []
    for part in sorted(parts, key=lambda part: (part["split"], part["first_sentence_id"])):
        run = found[-1] if found else []
        tokens = sum(other["tokens"] for other in run) + part["tokens"]
        if run and run[0]["split"] == part["split"] and tokens <= part_tokens:
            run.append(part)
        else:
            found.append([part])
    return found


def _join(folder: Path, run: Sequence[Info], number: int, layout: Layout) -> Info:
    """Write the part `number` that holds what the parts of `run` hold."""
    names = part_names(number)
    shards = [shard for part in run for shard in part["shards"]]
    fingerprint = digest(["join", [part["fingerprint"] for part in run]])
    metadata = {"elmo.fingerprint": fingerprint, "elmo.split": run[0]["split"]}
    types, columns, places = _join_types(folder, run, layout)
    schema = types_schema(layout, metadata=metadata)
    for name in names:
        (folder / f".{name}").unlink(missing_ok=True)
    write_types(folder / f".{names.types}", schema, layout, types, columns)
    schema = part_schema(layout, types_file=names.types, metadata=metadata)
    with PartWriter(folder / f".{names.part}", schema, layout) as writer:
        for part, place in zip(run, places, strict=True):
            with pq.ParquetFile(folder / part["file"]) as file:
                for group in range(file.num_row_groups):
                    _copy(file.read_row_group(group), writer, types, place, layout)
    for name in names:
        (folder / f".{name}").rename(folder / name)
    described = describe_part(folder, number)
    return {
        **described,
        "split": run[0]["split"],
        "fingerprint": fingerprint,
        "shards": shards,
    }


def _join_types(
    folder: Path, run: Sequence[Info], layout: Layout
) -> tuple[pa.StringArray, dict[str, npt.NDArray[Any]], list[npt.NDArray[np.int32]]]:
    """The distinct tokens of several parts, and for each part where its own are among them.

    A token is kept twice where two parts differ in its vector's last bit.
    """
    tables = [pq.read_table(folder / part["types"]["file"]) for part in run]
    known: dict[tuple[Any, ...], int] = {}
    places = []
    for table in tables:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        places.append(np.array([known.setdefault(row, len(known)) for row in rows], np.int32))
    columns: dict[str, npt.NDArray[Any]] = {}
    if "layer_0" in layout.layers:
        data = b"".join(row[1] for row in known)
        columns["layer_0"] = np.frombuffer(data, DTYPES[layout.dtype]).reshape(
            len(known), layout.dim // 2
        )
        if layout.dtype == "int8":
            columns["layer_0_scale"] = np.array([row[2] for row in known], SCALE)
    return pa.array([row[0] for row in known], pa.string()), columns, places


def _copy(
    table: pa.Table,
    writer: PartWriter,
    types: pa.StringArray,
    place: npt.NDArray[np.int32],
    layout: Layout,
) -> None:
    lengths = table["length"].to_numpy()
    rows = Rows(
        table["sentence_id"].to_numpy(),
        table["document_id"].to_numpy(),
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        place[flat(table["types"], ENTRY)],
        types,
    )
    columns: dict[str, npt.NDArray[Any]] = {}
    for name in layout.contextual:
        columns[name] = flat(table[name], DTYPES[layout.dtype]).reshape(-1, layout.dim)
        if layout.dtype == "int8":
            columns[f"{name}_scale"] = flat(table[f"{name}_scale"], SCALE)
    writer.add(rows, columns)
