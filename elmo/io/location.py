"""Files of a folder that is a local path or any URL that fsspec knows, behind one set of calls.

A file is written elsewhere and then gets its name, so a name stands for a whole file or for none.
`create` gives a name once: of two writers one gets it, and `create` returns false to the other.
That is all that several writers need to agree on: what is published has a name of its own and is
never changed. A store of another kind needs its fsspec package (the extra `cluster` has s3fs).

A temporary file is locked by the process that writes it, so `sweep` knows those of dead writers.
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
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from elmo.errors import ElmoError, NotFound, altered, missing, reason_of
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
    """Call `function` with each item, many at a time, as requests over a network are best made;
    return the results in the items' order, or raise the first exception in it."""
    work = list(items)
    with ThreadPoolExecutor(max(1, min(THREADS, len(work)))) as threads:
        return list(threads.map(function, work))


class Location:
    """A folder, local or at a URL; `options` are fsspec's storage options.

    Methods take names of files in it, or their paths below it. What fails at a URL is one
    `ElmoError`, but for `FileNotFoundError`.
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
        """A location as it is, or that of a path or URL."""
        return where if isinstance(where, Location) else cls(where)

    def __truediv__(self, folder: str) -> "Location":
        """The location of a folder in this one."""
        return Location(f"{self.url}/{folder}", self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self._absolute() == other._absolute()

    def __hash__(self) -> int:
        return hash(self._absolute())

    def __str__(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        """Connections stay behind: each process makes its own, and has its own working folder."""
        return {**self.absolute().__dict__, "_opened": None}

    def absolute(self) -> "Location":
        """The location that holds in any working folder."""
        if self.local is None or self.local.is_absolute():
            return self
        return Location(self.local.absolute(), self._options)

    @property
    def last(self) -> str:
        """The last part of the path or URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    def name(self, file: str) -> str:
        """Return what messages call a file of this folder."""
        return f"{self.url}/{file}" if file else self.url

    def exists(self, file: str) -> bool:
        """Tell whether there is a file of that name."""
        if self.local is not None:
            return (self.local / file).is_file()
        with self._remote(file) as (files, path):
            return bool(files.exists(path))

    def names(self) -> list[str]:
        """The names of all files, sorted; none where there is no folder. Folders are left out."""
        if self.local is not None:
            try:
                with os.scandir(self.local) as entries:
                    return sorted(entry.name for entry in entries if entry.is_file())
            except FileNotFoundError:
                return []
        return sorted(name for name, _ in self._listed("file"))

    def tree(self) -> dict[str, int]:
        """The bytes of each file, sorted by name, those of its folders as `folder/name`: one
        listing."""
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
        """The names of the folders in this one, sorted."""
        if self.local is not None:
            return sorted(path.name for path in self.local.glob("*") if path.is_dir())
        return sorted(name for name, _ in self._listed("directory"))

    def entries(self) -> list[str]:
        """The names of all that is in a local folder, whatever it is; at a URL, those of files."""
        if self.local is None:
            return self.names()
        try:
            return sorted(os.listdir(self.local))
        except FileNotFoundError:
            return []

    def size(self, file: str) -> int:
        """The bytes of a file."""
        if self.local is not None:
            return (self.local / file).stat().st_size
        with self._remote(file) as (files, path):
            return int(files.size(path))

    def age(self, file: str) -> float:
        """Seconds since a file was written."""
        if self.local is not None:
            return time.time() - (self.local / file).stat().st_mtime
        with self._remote(file) as (files, path):
            return time.time() - float(files.modified(path).timestamp())

    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a file, or those from `start` to `stop`."""
        if self.local is not None:
            with (self.local / file).open("rb") as stream:
                stream.seek(start)
                return stream.read() if stop is None else stream.read(max(0, stop - start))
        with self._remote(file) as (files, path):
            return bytes(files.cat_file(path, start=start or None, end=stop))

    def open(self, file: str) -> BinaryIO:
        """Open a file for reading at any position."""
        if self.local is not None:
            return (self.local / file).open("rb")
        with self._remote(file) as (files, path):
            return cast(BinaryIO, files.open(path, "rb"))

    def record(self, file: str, kind: type[Record], *, limit: int | None = None) -> Record:
        """A JSON file as `kind`, as `read_record` reads it."""
        if self.local is not None:
            return read_record(self.local / file, kind, limit=limit)
        try:
            check_json_size(self.size(file), source=self.name(file), limit=limit)
            data = self.read(file)
        except FileNotFoundError:
            raise NotFound(f"{self.name(file)}: no such file") from None
        return parse_record(data, kind, source=self.name(file))

    def sha256(self, file: str) -> str:
        """The SHA-256 of a file's bytes, in hex."""
        total = hashlib.sha256()
        with self.open(file) as stream:
            while block := stream.read(1 << 20):
                total.update(block)
        return total.hexdigest()

    def check(self, file: str, *, size: int, sha256: str | None = None) -> None:
        """`ElmoError` naming a file that is missing, truncated or (given `sha256`) altered."""
        try:
            actual = self.size(file)
        except FileNotFoundError:
            raise missing(self.name(file)) from None
        if actual != size:
            raise altered(self.name(file), f"{actual} bytes, its manifest says {size}")
        if sha256 is not None and self.sha256(file) != sha256:
            raise altered(self.name(file), "its sha256 is not its manifest's")

    def check_all(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Check the names and sizes of many files, as `check` does, by one listing."""
        listed = self.tree()
        doubtful = [one for one in sizes if listed.get(one[0]) != one[1]]
        in_parallel(lambda one: self.check(one[0], size=one[1]), doubtful)

    def delete(self, file: str) -> None:
        """Delete a file; nothing where it is not there."""
        if self.local is not None:
            (self.local / file).unlink(missing_ok=True)
            return
        with suppress(FileNotFoundError), self._remote(file) as (files, path):
            files.rm_file(path)

    def delete_all(self, files: Iterable[str]) -> None:
        """Delete many files."""
        in_parallel(self.delete, files)

    def write(self, file: str, data: bytes) -> None:
        """Write a whole small file, replacing one of that name at once."""
        if self.local is None:
            with self._remote(file) as (files, path):
                files.pipe_file(path, data)
            return
        with self.new(file) as new:
            new.write_bytes(data)

    def write_json(self, file: str, value: Any) -> None:
        """Write a value as `atomic.write_json` does, replacing a file of that name at once."""
        self.write(file, json_bytes(value, source=self.name(file)))

    @contextmanager
    def new(self, file: str) -> Iterator[Path]:
        """Yield an empty local file to write; then it replaces the file of that name, at once."""
        with self.temporary() as new:
            yield new
            if self.local is not None:
                os.replace(new, self.local / file)
                return
            self.put(file, new)

    def put(self, file: str, source: Path) -> None:
        """Copy a local file here, replacing one of that name."""
        if self.local is not None:
            with self.new(file) as new:
                shutil.copyfile(source, new)
            return
        with self._remote(file) as (files, path):
            files.put_file(str(source), path)

    def get(self, file: str, path: Path) -> None:
        """Copy a file to a local path."""
        if self.local is not None:
            shutil.copyfile(self.local / file, path)
            return
        with self._remote(file) as (files, remote):
            files.get_file(remote, str(path))

    def create(self, file: str, data: bytes) -> bool:
        """Write a whole small file unless there is one of that name; whether it was written.

        A store of objects that gives a name twice is refused: of two writers one would lose its
        work in silence.
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
        """Give what `temporary` yielded its name, unless a file has it; whether it was given.

        At a URL the name must follow from the content, since two writers may both put the file.
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

    def adopt(self, file: str, source: "Location", *, name: str = "") -> None:
        """Take a file of `source` under its own name or another, unless this folder has that.

        Between URLs of one store the bytes do not pass through this machine.
        """
        name = name or file
        if not self.exists(name):
            self._take(file, source, name)

    def adopt_all(self, names: Mapping[str, str], source: "Location") -> None:
        """Take many files of `source`, each under the name that follows it, as `adopt` does."""
        present = self.tree()
        missing = [(file, name) for file, name in names.items() if name not in present]
        in_parallel(lambda one: self._take(one[0], source, one[1]), missing)

    def _take(self, file: str, source: "Location", name: str) -> None:
        """Take a file, move it on a disk, under a name that is free here."""
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
        """Yield an empty local file to write and `publish`; it is gone afterwards.

        It lies in the folder, or for a URL where the system keeps temporary files.
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
        """Yield a local path of a file's bytes: the file itself, or a copy of what a URL has."""
        if self.local is not None:
            yield self.local / file
            return
        with self.temporary() as new:
            self.get(file, new)
            yield new

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While this lasts `being_written` is true for everyone: what no manifest names is needed.

        At a URL nobody can tell; there, age does. What dead writers left is removed. It begins when
        nobody is `undisturbed`.
        """
        self.sweep()
        with ExitStack() as stack:
            if self.local is not None:
                stack.enter_context(_locked(self.local, ".writing-"))
                stack.enter_context(_folder_lock(self.local, exclusive=False))
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[bool]:
        """Yield whether nobody is `writing`; if so, nobody begins to while this lasts."""
        if self.local is None or not self.local.is_dir():
            yield False
            return
        with _folder_lock(self.local, exclusive=True) as held:
            yield not self.being_written() if held is None else held

    def being_written(self) -> bool:
        """Tell whether a process is within `writing`; marks of dead ones are deleted."""
        if self.local is None:
            return False
        marks = [name for name in self.names() if _MARKER.fullmatch(name)]
        return any([not _delete_abandoned(self.local / mark) for mark in marks])

    def sweep(self) -> list[str]:
        """Delete the temporary files of writers that are dead; return their names."""
        self.being_written()  # deletes the marks of dead ones
        folder = self.local if self.local is not None else scratch()
        names = [name for name in Location(folder).names() if _TEMPORARY.fullmatch(name)]
        return [name for name in names if _delete_abandoned(folder / name)]

    def remove_folder(self) -> None:
        """Remove a local folder if it is empty."""
        if self.local is not None:
            with suppress(OSError):
                self.local.rmdir()

    def rename(self, other: "Location") -> None:
        """Give the folder another name; at a URL its files are copied."""
        if self.local is not None and other.local is not None:
            self.local.rename(other.local)
            return
        with self._remote("") as (files, path), other._remote("") as (_, new):
            files.mv(path.rstrip("/"), new.rstrip("/"), recursive=True)

    def remove(self) -> None:
        """Remove the folder with all that is in it; at a URL JSON files first: manifests are."""
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
            return
        self.delete_all(name for name in self.tree() if name.endswith(".json"))
        with suppress(FileNotFoundError), self._remote("") as (files, path):
            files.rm(path.rstrip("/"), recursive=True)

    def _copy(self, written: Path, path: Path) -> bool:
        """Create a file where the file system has no links."""
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
        """The names of the files or folders at a URL, and what its store tells of each."""
        try:
            with self._remote("") as (files, path):
                entries = files.ls(path.rstrip("/"), detail=True)
        except FileNotFoundError:
            return []
        entries = [entry for entry in entries if (entry["type"] == "file") == (kind == "file")]
        return [(entry["name"].rstrip("/").rpartition("/")[2], entry) for entry in entries]

    @contextmanager
    def _remote(self, file: str) -> Iterator[tuple[Any, str]]:
        """The file system of a URL and the path of a file there; what fails is one line."""
        try:
            files, root = self._files()
            yield files, f"{root}/{file}"
        except (FileNotFoundError, FileExistsError, ElmoError):
            raise
        except Exception as error:
            reason = without_login(reason_of(error), self.url)
            raise ElmoError(f"{self.name(file)}: {type(error).__name__}: {reason}") from error

    def _check_creates(self) -> None:
        """Ask a store once in a process whether it refuses to create a name a second time."""
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
        """fsspec's file system and the root in it, in this process.

        Listings are not kept: other processes write too.
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
    """A library's message without the login of `url`, which some take for a bucket's name."""
    login = urlsplit(url).netloc.rpartition("@")[0]
    return reason.replace(f"{login}@", "") if login else reason


def scratch() -> Path:
    """The folder of this user's temporary files of URLs on this machine; made when needed."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"elmo-{user}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(folder: Path, prefix: str) -> Iterator[Path]:
    """Yield a new empty file that this process holds a lock on; it is deleted in the end."""
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
    """Hold a folder's own lock, shared with others or, if it is free, alone; yield whether it is
    held, None where the file system has no locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield take_lock(descriptor, shared=not exclusive, wait=not exclusive)
    finally:
        os.close(descriptor)


def _delete_abandoned(path: Path) -> bool:
    """Delete a file that no living process has locked; whether it is gone."""
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
