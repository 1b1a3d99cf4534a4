"""Verify the files of a store."""

import numpy as np

from elmo.errors import ElmoError
from elmo.io.location import Folder, Location
from elmo.store.manifest import MANIFEST_PATH, StoreManifest, read_manifest
from elmo.store.reader import open_parquet


def verify(store: Folder) -> StoreManifest:
    """Check every file of a store, and that it has each sentence once; return its manifest.

    All bytes are read. Raises `ElmoError` with the first 20 problems, on one line.
    """
    location = Location.parse(store)
    manifest = read_manifest(location)
    name = location.path_of(MANIFEST_PATH)
    ids = [np.empty(0, np.int64)]
    problems: list[str] = []
    for part in manifest.parts:
        try:
            for file in (part, part.types):
                location.check_file(file.path, size=file.bytes, sha256=file.sha256)
        except ElmoError as error:
            problems.append(str(error))
            continue
        table = open_parquet(location, part.file).read(["sentence_id"])
        ids.append(table["sentence_id"].to_numpy())
    is_complete = len(ids) == len(manifest.parts) + 1
    all_ids = np.sort(np.concatenate(ids))
    repeated_ids = np.unique(all_ids[1:][all_ids[1:] == all_ids[:-1]])
    if len(repeated_ids):
        problems.append(
            f"{name}: repeated sentences: {len(repeated_ids)}, the first is {repeated_ids[0]}"
        )
    elif is_complete and not np.array_equal(all_ids, np.arange(len(all_ids))):
        missing_id = int(np.argmax(all_ids != np.arange(len(all_ids))))
        problems.append(f"{name}: sentence {missing_id} is in no part")
    if problems:
        remainder = f" (and {len(problems) - 20} more)" if len(problems) > 20 else ""
        raise ElmoError("; ".join(problems[:20]) + remainder)
    return manifest
