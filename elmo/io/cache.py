"""The user's cache: copies of files at URLs, limited in size."""

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from elmo.errors import BadSettings, altered_error, missing_error
from elmo.io import records
from elmo.io.location import Location, temporary_folder

CACHE_VARIABLE = "ELMO_CACHE"  # names the folder of the copies
CACHE_GB_VARIABLE = "ELMO_CACHE_GB"  # the maximum size of all copies
_COPY_NAME = re.compile("[0-9a-f]{64}")


def user_cache() -> Path:
    """Return the user's cache folder for elmo, which may not exist; its files can be recreated."""
    if cache_home := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "elmo"
    with suppress(RuntimeError):  # a container's user may have no home folder
        return Path.home() / ".cache" / "elmo"
    return temporary_folder() / "cache"


def cached_copy(location: Location, file: str, *, sha256: str) -> Path:
    """Return a local path of the file `file` in a folder: the file itself, or for a URL a copy in
    this machine's cache.

    `sha256` is the SHA-256 that the file must have, in hex; it names the copy and is checked when
    the copy is made. A process that needs space may delete it before you open it; then call this
    again.
    """
    if location.local is not None:
        return location.local / file
    folder = Location(os.environ.get(CACHE_VARIABLE) or temporary_folder() / "cache")
    assert folder.local is not None
    path = folder.local / sha256
    with suppress(FileNotFoundError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # marks it as just used
        return path
    if not location.exists(file):
        raise missing_error(location.path_of(file))
    with folder.new_file(sha256) as new_copy:
        location.get(file, new_copy)
        if records.sha256(new_copy) != sha256:
            raise altered_error(location.path_of(file), "its sha256 differs from its manifest's")
    _evict_copies(folder.local, kept_name=sha256)
    return path


def _evict_copies(folder: Path, *, kept_name: str) -> None:
    """Delete the least recently used copies while they take too much space, but never `kept_name`.

    The limit is the variable `ELMO_CACHE_GB`, by default half of free space plus copies.
    """
    copies = []
    for name in filter(_COPY_NAME.fullmatch, os.listdir(folder)):
        with suppress(FileNotFoundError):
            copies.append(((folder / name).stat(), name))
    used_bytes = sum(status.st_size for status, _ in copies)
    limit = os.environ.get(CACHE_GB_VARIABLE)
    max_bytes = _parse_size(limit) if limit else (shutil.disk_usage(folder).free + used_bytes) / 2
    for status, name in sorted(copies, key=lambda copy: copy[0].st_atime_ns):
        if used_bytes > max_bytes and name != kept_name:
            (folder / name).unlink(missing_ok=True)
            used_bytes -= status.st_size


def _parse_size(text: str) -> float:
    try:
        return float(text) * 1e9
    except ValueError:
        problem = f"{CACHE_GB_VARIABLE} must be a number of gigabytes, found {text!r}"
        raise BadSettings(problem) from None
