"""The manifest of a store: what it holds, what made it, and its versions.

`manifest.json` is the newest version. Adding to a store keeps the one before as
`manifest-000001.json` and so on, and no file that an older version names is ever changed.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.files import digest, read_json, write_json
from elmo.store_layout import SCHEMA_VERSION, Layout
from elmo.store_place import Place

Info = dict[str, Any]
MANIFEST = "manifest.json"


def new_manifest(
    *,
    layout: Layout,
    model: Info,
    params: Info,
    sources: Sequence[Info],
    parts: Sequence[Info],
    made_by: str,
    before: Info | None = None,
) -> Info:
    """A manifest of `parts`, in the order of their names; `before` is the version it follows."""
    manifest = {
        "kind": "store",
        "schema": SCHEMA_VERSION,
        "version": 1 if before is None else before["version"] + 1,
        "made_by": made_by,
        "before": before and digest(before),
        "layout": layout.to_dict(),
        "model": model,
        "params": params,
        "sources": list(sources),
        "parts": sorted(parts, key=lambda part: part["file"]),
        "counts": {
            "sentences": sum(part["sentences"] for part in parts),
            "tokens": sum(part["tokens"] for part in parts),
            "types": sum(part["types"]["rows"] for part in parts),
            "parts": len(parts),
            "bytes": sum(part["bytes"] + part["types"]["bytes"] for part in parts),
        },
    }
    return manifest


def read_manifest(place: Place, *, version: int | None = None) -> Info:
    """The newest version of a store's manifest, or a given one; `ElmoError` where it is none."""
    manifest = place.json(MANIFEST)
    if version is not None and manifest.get("version") != version:
        name = version_name(version)
        if not place.exists(name):
            raise ElmoError(
                f"{place.url}: has no version {version}; the newest is {manifest.get('version')}"
            )
        manifest = place.json(name)
    if manifest.get("kind") != "store":
        raise ElmoError(f"{place.name(MANIFEST)}: is not the manifest of a store")
    if manifest.get("schema") != SCHEMA_VERSION:
        raise ElmoError(
            f"{place.name(MANIFEST)}: has schema {manifest.get('schema')}, this version reads "
            f"{SCHEMA_VERSION}; make the store again"
        )
    missing = {"version", "layout", "model", "sources", "parts", "counts"} - manifest.keys()
    if missing:
        raise ElmoError(f"{place.name(MANIFEST)}: lacks {', '.join(sorted(missing))}")
    return manifest


def publish(folder: Path, manifest: Info) -> None:
    """Make `manifest` the newest version of the store in `folder`, keeping the one before it.

    `ElmoError` where the store has changed since `manifest` was made.
    """
    newest = folder / MANIFEST
    if manifest["before"] is not None:
        before = read_json(newest)
        if digest(before) != manifest["before"]:
            raise ElmoError(f"{folder}: another version was published meanwhile; try again")
        kept = folder / version_name(before["version"])
        if not kept.exists():
            os.link(newest, kept)
    write_json(newest, manifest)


def versions(folder: Path) -> dict[int, Path]:
    """The manifests of a local store, by version, oldest first."""
    found = {}
    for path in folder.iterdir():
        if match := re.fullmatch(r"manifest-(\d{6})\.json", path.name):
            found[int(match[1])] = path
    newest = read_manifest(Place(folder))["version"]
    found[newest] = folder / MANIFEST
    return dict(sorted(found.items()))


def next_number(folder: Path) -> int:
    """The number of the next part: above that of any part of any version."""
    numbers = [-1]
    for path in versions(folder).values():
        for part in read_json(path)["parts"]:
            numbers.append(int(part["file"].split("-")[1].split(".")[0]))
    return max(numbers) + 1


def version_name(version: int) -> str:
    """The file that keeps an older version of the manifest."""
    return f"manifest-{version:06d}.json"
