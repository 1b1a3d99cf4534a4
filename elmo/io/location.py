"""Locations: folders on a disk or at any URL that fsspec supports, with one set of operations.

A file is written elsewhere and then gets its name, so a name always stands for a complete file.
`create` writes a name only once: if two writers try, one succeeds and the other gets false. Several
writers need no other coordination, since published files have names of their own and never change.
Other kinds of storage need their fsspec package (the extra `cluster` has s3fs).

The writing process holds a lock on its temporary files, so `sweep` can tell which are abandoned.
"""

import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from elmo.errors import ElmoError, NotFound, altered_error, missing_error, reason_of
from elmo.io.atomic import take_lock
from elmo.io.records import (
    Record,
    check_json_size,
    json_bytes,
    parse_record,
    read_record,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 32  # requests at a time
_MODE = 0o644  # less the umask: readable by the group
_TEMPORARY = re.compile(r"\.new-[0-9a-f]{16}")
_MARKER = re.compile(r"\.writing-[0-9a-f]{16}")
_ABANDONED = 24 * 3600.0  # seconds after which a file whose lock tells nothing has no writer
_CREATING: set[str] = set()  # the stores of which this process knows that `create` holds there
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `function` with each item in parallel threads, as suits network requests.

    Return the results in the order of the items, or raise the first exception in that order.
    """
    work = list(items)
    with ThreadPoolExecutor(max(1, min(THREADS, len(work)))) as threads:
        return list(threads.map(function, work))


class Location:
    """A folder, on a disk or at a URL; `options` are fsspec's storage options.

    Methods take names of files in the folder, or paths below it. A failure at a URL is an
    `ElmoError` of one line, except that a missing file is a `FileNotFoundError`.
    """

    def __init__(self, url: str | Path, options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(url, str | os.PathLike):
            raise TypeError(f"a folder is named by a text or a Path, not by {url!r:.80}")
        text = str(url).removeprefix("file://")
        if isinstance(url, Path) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", text):
            raise ElmoError(f"{text}: a URL has two slashes; give it as text, not as a Path")
        self.url = text.rstrip("/") or text
        self.local = None if "://" in text else Path(text)
        self._options = dict(options or {})
        self._opened: tuple[int, Any, str] | None = None

    @classmethod
    def of(cls, where: "Folder") -> "Location":
        """Return a path or URL as a location; a location is returned unchanged."""
        return where if isinstance(where, Location) else cls(where)

    def __truediv__(self, folder: str) -> "Location":
        """Return the location of a subfolder."""
        return Location(f"{self.url}/{folder}", self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self._absolute() == other._absolute()

    def __hash__(self) -> int:
        return hash(self._absolute())

    def __str__(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: an absolute path, and no connection, since each process opens
        its own."""
        return {**self.absolute().__dict__, "_opened": None}

    def absolute(self) -> "Location":
        """Return the location with an absolute path, which is valid in any working folder."""
        if self.local is None or self.local.is_absolute():
            return self
        return Location(self.local.absolute(), self._options)

    @property
    def last(self) -> str:
        """Return the last component of the path or URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    def name(self, file: str) -> str:
        """Return the full path or URL of a file, for messages."""
        return f"{self.url}/{file}" if file else self.url

    def exists(self, file: str) -> bool:
        """Tell whether a file exists."""
        if self.local is not None:
            return (self.local / file).is_file()
        with self._remote(file) as (files, path):
            return bool(files.exists(path))

    def names(self) -> list[str]:
        """Return the sorted names of the files in the folder, without subfolders; none if it is
        missing."""
        if self.local is not None:
            try:
                with os.scandir(self.local) as entries:
                    return sorted(entry.name for entry in entries if entry.is_file())
            except FileNotFoundError:
                return []
        return sorted(name for name, _ in self._listed("file"))

    def tree(self) -> dict[str, int]:
        """Return the size in bytes of each file, in subfolders too, by its path below the folder.

        At a URL this takes one listing.
        """
        if self.local is not None:
            paths = [path for path in self.local.rglob("*") if path.is_file()]
            sizes = {path.relative_to(self.local).as_posix(): path.stat().st_size for path in paths}
        else:
            with self._remote("") as (files, path):
                root = files._strip_protocol(path)
                listed = files.find(root, detail=True)
            sizes = {
                name[len(root) :].lstrip("/"): int(entry["size"] or 0)
                for name, entry in listed.items()
            }
        return dict(sorted(sizes.items()))

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders."""
        if self.local is not None:
            return sorted(path.name for path in self.local.glob("*") if path.is_dir())
        return sorted(name for name, _ in self._listed("directory"))

    def entries(self) -> list[str]:
        """Return the sorted names of everything in a local folder; at a URL, of files only."""
        if self.local is None:
            return self.names()
        try:
            return sorted(os.listdir(self.local))
        except FileNotFoundError:
            return []

    def size(self, file: str) -> int:
        """Return the size of a file in bytes."""
        if self.local is not None:
            return (self.local / file).stat().st_size
        with self._remote(file) as (files, path):
            return int(files.size(path))

    def age(self, file: str) -> float:
        """Return the seconds since a file was last written."""
        if self.local is not None:
            return time.time() - (self.local / file).stat().st_mtime
        with self._remote(file) as (files, path):
            return time.time() - float(files.modified(path).timestamp())

    def read(self, file: str) -> bytes:
        """Return the bytes of a file."""
        if self.local is not None:
            return (self.local / file).read_bytes()
        with self._remote(file) as (files, path):
            return bytes(files.cat_file(path))

    def open(self, file: str) -> BufferedReader:
        """Open a file for reading, with seek."""
        if self.local is not None:
            return (self.local / file).open("rb")
        with self._remote(file) as (files, path):
            return cast(BufferedReader, files.open(path, "rb"))

    def record(self, file: str, kind: type[Record], *, limit: int | None = None) -> Record:
        """Read a JSON file as type `kind`, as `elmo.io.records.read_record` does."""
        if self.local is not None:
            return read_record(self.local / file, kind, limit=limit)
        try:
            check_json_size(self.size(file), source=self.name(file), limit=limit)
            data = self.read(file)
        except FileNotFoundError:
            raise NotFound(f"{self.name(file)}: no such file") from None
        return parse_record(data, kind, source=self.name(file))

    def sha256(self, file: str) -> str:
        """Return the SHA-256 of a file's bytes, in hex."""
        with self.open(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def check(self, file: str, *, size: int, sha256: str | None = None) -> None:
        """Raise `ElmoError` if a file is missing, has another size or, if `sha256` is given, other
        bytes."""
        try:
            actual = self.size(file)
        except FileNotFoundError:
            raise missing_error(self.name(file)) from None
        if actual != size:
            raise altered_error(self.name(file), f"{actual} bytes, its manifest says {size}")
        if sha256 is not None and self.sha256(file) != sha256:
            raise altered_error(self.name(file), "its sha256 is not its manifest's")

    def check_all(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Check the existence and size of many files, as `check` does, with one listing."""
        listed = self.tree()
        doubtful = [one for one in sizes if listed.get(one[0]) != one[1]]
        in_parallel(lambda one: self.check(one[0], size=one[1]), doubtful)

    def delete(self, file: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        if self.local is not None:
            (self.local / file).unlink(missing_ok=True)
            return
        with suppress(FileNotFoundError), self._remote(file) as (files, path):
            files.rm_file(path)

    def delete_all(self, files: Iterable[str]) -> None:
        """Delete many files, in parallel."""
        in_parallel(self.delete, files)

    def write(self, file: str, data: bytes) -> None:
        """Write a whole small file, atomically replacing one of that name."""
        if self.local is None:
            with self._remote(file) as (files, path):
                files.pipe_file(path, data)
            return
        with self.new(file) as new:
            new.write_bytes(data)

    def write_json(self, file: str, value: Any) -> None:
        """Write a value as JSON, like `elmo.io.atomic.write_json`, atomically replacing a file of
        that name."""
        self.write(file, json_bytes(value, source=self.name(file)))

    @contextmanager
    def new(self, file: str) -> Iterator[Path]:
        """Yield an empty local file to write; in the end it atomically replaces the file of that
        name."""
        with self.temporary() as new:
            yield new
            if self.local is not None:
                os.replace(new, self.local / file)
                return
            self.put(file, new)

    def put(self, file: str, source: Path) -> None:
        """Copy a local file into the folder, replacing one of that name."""
        if self.local is not None:
            with self.new(file) as new:
                shutil.copyfile(source, new)
            return
        with self._remote(file) as (files, path):
            files.put_file(str(source), path)

    def get(self, file: str, path: Path) -> None:
        """Copy a file of the folder to a local path."""
        if self.local is not None:
            shutil.copyfile(self.local / file, path)
            return
        with self._remote(file) as (files, remote):
            files.get_file(remote, str(path))

    def create(self, file: str, data: bytes) -> bool:
        """Write a whole small file unless one of that name exists; return whether it was written.

        `ElmoError` is raised for an object store without conditional writes, where one of two
        writers would silently lose its work.
        """
        if self.local is not None:
            with self.temporary() as new:
                new.write_bytes(data)
                return self.publish(new, file)
        self._check_creates()
        try:
            with self._remote(file) as (files, path):
                files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def publish(self, written: Path, file: str) -> bool:
        """Give a file from `temporary` its name, unless that name is taken; return whether it was
        given.

        At a URL, use only names that the content determines, since two writers may both upload the
        file.
        """
        if self.local is None:
            if self.exists(file):
                return False
            with self._remote(file) as (files, path):
                files.put_file(str(written), path)
            return True
        (self.local / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(written, self.local / file)  # the only call that fails where the name is taken
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._copy(written, self.local / file)
        return True

    def adopt(self, file: str, source: "Location") -> None:
        """Take over a file of `source` under its own name, unless this folder has one.

        On one disk the file is moved. Between URLs of one store, it is copied without passing
        through this machine.
        """
        if not self.exists(file):
            self._take(file, source, file)

    def adopt_all(self, names: Mapping[str, str], source: "Location") -> None:
        """Take over many files of `source`, as `adopt` does; `names` maps their old names to the
        new ones."""
        present = self.tree()
        missing = [(file, name) for file, name in names.items() if name not in present]
        in_parallel(lambda one: self._take(one[0], source, one[1]), missing)

    def _take(self, file: str, source: "Location", name: str) -> None:
        """Move or copy a file of `source` to a name that is not taken here."""
        if self.local is None:
            if source.local is not None:
                with self._remote(name) as (files, path):
                    files.put_file(str(source.local / file), path)
                return
            with self._remote(name) as (files, path), source._remote(file) as (theirs, old):
                if files.protocol == theirs.protocol:
                    files.cp_file(old, path)
                    return
        if self.local is not None and source.local is not None:
            (self.local / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(source.local / file, self.local / name)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        with self.temporary() as new, source.open(file) as stream:
            with new.open("wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
            self.publish(new, name)

    @contextmanager
    def temporary(self) -> Iterator[Path]:
        """Yield an empty local file, to be written and passed to `publish`; it is deleted
        afterwards.

        It is in the folder itself, or for a URL in the system's folder for temporary files.
        """
        folder = self.local or scratch()
        with _locked(folder, ".new-") as path:
            try:
                yield path
            except OSError as error:
                if error.filename is None:
                    raise ElmoError(f"{self.url}: {reason_of(error)}") from error
                raise

    @contextmanager
    def local_copy(self, file: str) -> Iterator[Path]:
        """Yield a local path of a file: the file itself, or a temporary copy if it is at a URL."""
        if self.local is not None:
            yield self.local / file
            return
        with self.temporary() as new:
            self.get(file, new)
            yield new

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Mark the folder as being written, so that `prune` keeps files that no manifest names yet.

        While the mark is set, `being_written` is true in every process. At a URL there is no mark;
        the age of files decides there. Files of dead writers are deleted first. It waits while
        another process is in `undisturbed`.
        """
        self.sweep()
        with ExitStack() as stack:
            if self.local is not None:
                stack.enter_context(_locked(self.local, ".writing-"))
                stack.enter_context(_folder_lock(self.local, exclusive=False))
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[bool]:
        """Yield whether no process is in `writing`; if so, none can enter it during this
        context."""
        if self.local is None or not self.local.is_dir():
            yield False
            return
        with _folder_lock(self.local, exclusive=True) as held:
            yield not self.being_written() if held is None else held

    def being_written(self) -> bool:
        """Tell whether a live process is in `writing`; marks of dead processes are deleted."""
        if self.local is None:
            return False
        marks = [name for name in self.names() if _MARKER.fullmatch(name)]
        return any([not _delete_abandoned(self.local / mark) for mark in marks])

    def sweep(self) -> list[str]:
        """Delete the temporary files of dead writers; return their names."""
        self.being_written()  # deletes the marks of dead ones
        folder = self.local if self.local is not None else scratch()
        names = [name for name in Location(folder).names() if _TEMPORARY.fullmatch(name)]
        return [name for name in names if _delete_abandoned(folder / name)]

    def remove_folder(self) -> None:
        """Delete a local folder if it is empty."""
        if self.local is not None:
            with suppress(OSError):
                self.local.rmdir()

    def rename(self, other: "Location") -> None:
        """Rename the folder; at a URL its files are copied."""
        if self.local is not None and other.local is not None:
            self.local.rename(other.local)
            return
        with self._remote("") as (files, path), other._remote("") as (_, new):
            files.mv(path.rstrip("/"), new.rstrip("/"), recursive=True)

    def remove(self) -> None:
        """Delete the folder and its content; at a URL JSON files first, since manifests are
        JSON."""
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
            return
        self.delete_all(name for name in self.tree() if name.endswith(".json"))
        with suppress(FileNotFoundError), self._remote("") as (files, path):
            files.rm(path.rstrip("/"), recursive=True)

    def _copy(self, written: Path, path: Path) -> bool:
        """Create a file by copying, on a file system without hard links."""
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, _MODE)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "wb") as out, written.open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return True

    def _absolute(self) -> str:
        return self.url if self.local is None else os.path.abspath(self.local)

    def _listed(self, kind: str) -> list[tuple[str, Any]]:
        """Return the names of the files or folders at a URL, with their properties."""
        try:
            with self._remote("") as (files, path):
                entries = files.ls(path.rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        entries = [entry for entry in entries if (entry["type"] == "file") == (kind == "file")]
        return [(entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries]

    @contextmanager
    def _remote(self, file: str) -> Iterator[tuple[Any, str]]:
        """Yield the file system of a URL and the path of a file in it; errors become one-line
        messages."""
        try:
            files, root = self._files()
            yield files, f"{root}/{file}"
        except (FileNotFoundError, FileExistsError, ElmoError):
            raise
        except Exception as error:
            reason = without_login(reason_of(error), self.url)
            raise ElmoError(f"{self.name(file)}: {type(error).__name__}: {reason}") from error

    def _check_creates(self) -> None:
        """Check, once per process, that a store refuses to create a name a second time."""
        files, root = self._files()
        store = f"{type(files).__name__} {files._fs_token} {root.lstrip('/').partition('/')[0]}"
        if store in _CREATING:
            return
        name = f".probe-{secrets.token_hex(8)}"
        with self._remote(name) as (files, path):
            files.pipe_file(path, b"first", mode="create")
            try:
                files.pipe_file(path, b"second", mode="create")
            except FileExistsError:
                _CREATING.add(store)
            finally:
                files.rm_file(path)
        if store not in _CREATING:
            raise ElmoError(
                f"{self.url}: this store gives a name twice (it does not heed If-None-Match), so "
                "two writers could lose each other's work; use one with conditional writes, such "
                "as S3, Google Cloud Storage, Azure or a newer version of your server"
            )

    def _files(self) -> tuple[Any, str]:
        """Return fsspec's file system and the root path in it, opened by this process.

        Listings are not cached, since other processes write too.
        """
        if self._opened is None or self._opened[0] != os.getpid():
            from fsspec.config import conf
            from fsspec.core import url_to_fs

            options = self._options
            if "::" not in self.url:
                options = {"use_listings_cache": False, **options}
            if self.url.startswith("s3://"):  # whose client opens 10 connections otherwise
                given = {**conf.get("s3", {}), **options}.get("config_kwargs") or {}
                options["config_kwargs"] = {"max_pool_connections": THREADS, **given}
            files, root = url_to_fs(self.url, **options)
            self._opened = os.getpid(), files, root.rstrip("/")
        _, files, root = self._opened
        return files, root


Folder = str | Path | Location  # that a user of the library names: a path, a URL as text


def without_login(reason: str, url: str) -> str:
    """Return a message without the login of `url`; libraries may mistake it for part of a bucket's
    name."""
    login = urlsplit(url).netloc.rpartition("@")[0]
    return reason.replace(f"{login}@", "") if login else reason


def scratch() -> Path:
    """Return the user's folder for temporary copies of files at URLs; create it if necessary."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"elmo-{user}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a new empty file that this process has locked; it is deleted in the end."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{prefix}{secrets.token_hex(8)}"
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _MODE)
        except FileNotFoundError:  # the folder was removed in between
            continue
        take_lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # a sweep was between the two calls
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def _folder_lock(folder: Path, *, exclusive: bool) -> Iterator[bool | None]:
    """Hold a folder's own lock, shared or exclusive; yield the result of `take_lock`.

    An exclusive lock is not waited for.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield take_lock(descriptor, shared=not exclusive, wait=not exclusive)
    finally:
        os.close(descriptor)


def _delete_abandoned(path: Path) -> bool:
    """Delete a file unless a live process has locked it; return whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return not path.exists()
    try:
        held = take_lock(descriptor, wait=False)
        if held is None:  # locks tell nothing on this file system
            held = time.time() - os.fstat(descriptor).st_mtime >= _ABANDONED
        if held:
            path.unlink(missing_ok=True)
        return held
    finally:
        os.close(descriptor)
