"""SHA-256 digests of text files, cached so that an unchanged file is read once.

A file is identified by its name, its size, and the ETag or times of its version. A file in the
user's cache folder has a line for each large file.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from elmo.errors import ElmoError
from elmo.io.cache import user_cache
from elmo.io.location import in_parallel
from elmo.io.records import check_regular_file, digest

from ..terminal.failures import catch_read_errors
from ..terminal.progress import Progress

_CACHE_FILE = "digests.txt"  # each line has a key and a SHA-256
_MAX_CACHE_BYTES = 16 << 20  # a larger cache is emptied
_LARGE_BYTES = 1 << 20  # digests of smaller files on a disk are not cached
_PROGRESS_BYTES = 256 << 20  # progress is shown if there is more to read
_SETTLING_SECONDS = 2.0  # on any disk, changes further apart than this have different times
_TIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "created")


class FileState(Struct, frozen=True):
    """The size of a file and a mark of its current version, found without reading the file.

    `mark` is an ETag or a time of change; empty if there is none. `cache_key` is a part of the key
    in the digest cache; it is empty if the digest is not cached, because the file is small or its
    version unknown.
    """

    bytes: int
    mark: str = ""
    cache_key: str = ""


def find_state(url: str) -> FileState:
    """Return the `FileState` of a local path or a URL."""
    with catch_read_errors(url):
        if "://" in url:
            import fsspec

            files, path = fsspec.core.url_to_fs(url)
            return state_from_info(files.info(path))
        check_regular_file(Path(url))
        status = os.stat(url)
    is_settled = time.time() - max(status.st_mtime, status.st_ctime) > _SETTLING_SECONDS
    cache_key = f"{status.st_ctime_ns} {status.st_dev} {status.st_ino}"
    mark = f"{status.st_mtime_ns}"
    return FileState(
        status.st_size, mark, cache_key if is_settled and status.st_size >= _LARGE_BYTES else ""
    )


def state_from_info(info: Mapping[str, Any]) -> FileState:
    """Return the `FileState` of a file at a URL from `info`, fsspec's description of it."""
    if info.get("size") is None:
        return FileState(0)
    size = int(info["size"])
    if etag := next((str(info[name]) for name in ("ETag", "etag") if info.get(name)), ""):
        return FileState(size, etag, "at a URL")
    changed_at = next((info[name] for name in _TIME_KEYS if info.get(name)), None)
    if changed_at is None or isinstance(changed_at, str):
        return FileState(size, str(changed_at or ""))
    seconds = changed_at if isinstance(changed_at, int | float) else changed_at.timestamp()
    return FileState(
        size, str(changed_at), "at a URL" if time.time() - seconds > _SETTLING_SECONDS else ""
    )


def digest_files(
    files: Sequence[tuple[str, FileState]],
    read: Callable[[str, Callable[[int], None]], tuple[int, str]],
) -> list[tuple[int, str]]:
    """Return the size and the SHA-256 of each file, from the cache if the file has not changed.

    `files` are paths or URLs, each with its state. `read(url, advance)` reads a file and returns
    its size and digest; it calls `advance` with the size of each block, for the progress bar.
    """
    path = user_cache() / _CACHE_FILE
    cached_digests = _read_cached_digests(path)
    keys = [
        digest([url, state.bytes, state.mark, state.cache_key]) if state.cache_key else ""
        for url, state in files
    ]
    indices_to_read = [index for index, key in enumerate(keys) if key not in cached_digests]
    size_to_read = sum(files[index][1].bytes for index in indices_to_read)
    progress, lock = Progress("reading", size_to_read / 1e6, unit="MB"), threading.Lock()

    def advance(count: int) -> None:
        with lock:
            progress.advance(count / 1e6)

    def read_digest(index: int) -> tuple[int, str]:
        url, state = files[index]
        size, sha256 = read(url, advance)
        if keys[index] and size == state.bytes and find_state(url).mark == state.mark:
            with suppress(OSError, ElmoError):  # without a writable home, nothing is cached
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("a", encoding="ascii") as file:
                    file.write(f"{keys[index]} {sha256}\n")
        return size, sha256

    with progress if size_to_read > _PROGRESS_BYTES else nullcontext():
        read_digests = dict(
            zip(indices_to_read, in_parallel(read_digest, indices_to_read), strict=True)
        )
    return [
        read_digests.get(index) or (files[index][1].bytes, cached_digests[key])
        for index, key in enumerate(keys)
    ]


def _read_cached_digests(path: Path) -> dict[str, str]:
    """Return the cached digests by key; truncated lines are skipped."""
    with suppress(OSError, UnicodeDecodeError):
        if path.stat().st_size > _MAX_CACHE_BYTES:
            path.unlink()
        lines = [line.split(" ") for line in path.read_text(encoding="ascii").splitlines()]
        return {line[0]: line[1] for line in lines if [*map(len, line)] == [64, 64]}
    return {}
