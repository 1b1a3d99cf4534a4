"""Locations: folders on a disk or at any URL that fsspec supports, with one set of operations.

A file is written elsewhere and then gets its name, so a name always stands for a complete file.
`create` writes a name only once: if two writers try, one succeeds and the other gets false. Writers
need no other coordination, because published files have unique names and never change. Each kind of
storage needs its fsspec package (the extra `cluster` includes s3fs).
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar, cast

from elmo.errors import ElmoError, NotFound, altered_error, missing_error
from elmo.io.atomic import hidden_folder
from elmo.io.records import Record, check_json_size, json_bytes, parse_record, read_record
from elmo.io.remote import MAX_REQUESTS, Remote

Item = TypeVar("Item")
Result = TypeVar("Result")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Call `function` with each item in parallel threads, as is useful for network requests.

    Return the results in the order of the items, or raise the first exception in that order.
    """
    item_list = list(items)
    with ThreadPoolExecutor(max(1, min(MAX_REQUESTS, len(item_list)))) as threads:
        return list(threads.map(function, item_list))


class Location:
    """A folder, on a disk or at a URL; `options` are fsspec's storage options.

    Methods take names of files in the folder, or paths below it. A failure at a URL is an
    `ElmoError` of one line, except that a missing file is a `FileNotFoundError`. These methods
    write a file completely or not at all:

    ==================== ============================== ==========================
    method               writes                         if the name is taken
    ==================== ============================== ==========================
    write, write_json    bytes, or a value as JSON      replaces the file
    new_file             what the caller writes to a    replaces the file
                         path
    put                  a copy of a local file         replaces the file
    create               bytes                          writes nothing, says False
    publish              the file of `temporary_file`   writes nothing, says False
    take_file(s)         files of another folder        keeps the file
    ==================== ============================== ==========================
    """

    def __init__(self, url: str | Path, options: Mapping[str, Any] | None = None) -> None:
        if not isinstance(url, str | os.PathLike):
            url_text = " ".join(repr(url).split())
            raise TypeError(f"a folder must be a string or a Path, found {url_text:.80}")
        if not str(url).strip():
            raise ElmoError(f"the folder's name is empty, found {url!r}; pass one")
        text = str(url).removeprefix("file://")
        if isinstance(url, Path) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", text):
            raise ElmoError(
                f"{text}: looks like a URL with one slash; pass it as a string, not as a Path"
            )
        self.url = text.rstrip("/") or text
        self.local = None if "://" in text else Path(text)
        self._remote = Remote(self.url, options or {})

    @classmethod
    def parse(cls, folder: "Folder") -> "Location":
        """Return a path or URL as a location; a location is returned unchanged."""
        return folder if isinstance(folder, Location) else cls(folder)

    def __truediv__(self, folder: str) -> "Location":
        """Return the location of a subfolder."""
        return Location(f"{self.url}/{folder}", self._remote.options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self._absolute_url() == other._absolute_url()

    def __hash__(self) -> int:
        return hash(self._absolute_url())

    def __str__(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with an absolute path."""
        return self.absolute().__dict__

    def absolute(self) -> "Location":
        """Return the location with an absolute path, so that it is valid in any working folder."""
        if self.local is None or self.local.is_absolute():
            return self
        return Location(self.local.absolute(), self._remote.options)

    @property
    def folder_name(self) -> str:
        """Return the last component of the path or URL."""
        return self.url.rstrip("/").rpartition("/")[2]

    def path_of(self, file: str) -> str:
        """Return the full path or URL of a file (empty: of the folder), for messages."""
        return f"{self.url}/{file}" if file else self.url

    def exists(self, file: str) -> bool:
        """Tell whether the folder has a file `file`: a name, or a path below the folder."""
        if self.local is not None:
            return (self.local / file).is_file()
        with suppress(FileNotFoundError), self._remote.connect(file) as (fs, path):
            return bool(fs.info(path))  # `exists` is False too if a server does not answer
        return False

    def names(self) -> list[str]:
        """Return the sorted names of the files directly in the folder; none if it is missing."""
        if self.local is not None:
            try:
                with os.scandir(self.local) as entries:
                    return sorted(entry.name for entry in entries if entry.is_file())
            except FileNotFoundError:
                return []
        return sorted(name for name, _ in self._remote.listing("file"))

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of each file, in subfolders too, by its path below the folder.

        At a URL this takes one listing.
        """
        if self.local is not None:
            sizes = {name: status.st_size for name, status in files_below(self.local).items()}
        else:
            sizes = self._remote.sizes()
        return dict(sorted(sizes.items()))

    def folders(self) -> list[str]:
        """Return the sorted names of the subfolders."""
        if self.local is not None:
            return sorted(path.name for path in self.local.glob("*") if path.is_dir())
        return sorted(name for name, _ in self._remote.listing("directory"))

    def size(self, file: str) -> int:
        """Return the size of a file in bytes."""
        if self.local is not None:
            return (self.local / file).stat().st_size
        with self._remote.connect(file) as (fs, path):
            return int(fs.size(path))

    def read(self, file: str) -> bytes:
        """Return the bytes of a file."""
        if self.local is not None:
            return (self.local / file).read_bytes()
        with self._remote.connect(file) as (fs, path):
            return bytes(fs.cat_file(path))

    def open(self, file: str) -> BufferedReader:
        """Open a file for reading, with seek."""
        if self.local is not None:
            return (self.local / file).open("rb")
        with self._remote.connect(file) as (fs, path):
            return cast(BufferedReader, fs.open(path, "rb"))

    def read_record(self, file: str, record_type: type[Record]) -> Record:
        """Read a JSON file of the folder as type `record_type`, a `msgspec.Struct` or any type that
        msgspec supports.

        Raises `ElmoError` if it is missing, larger than `JSON_LIMIT`, not JSON, or of another type.
        """
        if self.local is not None:
            return read_record(self.local / file, record_type)
        try:
            check_json_size(self.size(file), source=self.path_of(file))
            data = self.read(file)
        except FileNotFoundError:
            raise NotFound(f"{self.path_of(file)}: no such file; check the name") from None
        return parse_record(data, record_type, source=self.path_of(file))

    def sha256(self, file: str) -> str:
        """Return the SHA-256 of a file's bytes, in hex."""
        with self.open(file) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def check_file(self, file: str, *, size: int, sha256: str | None = None) -> None:
        """Raise `ElmoError` if a file is missing, or has another size or, if given, `sha256`."""
        try:
            real_size = self.size(file)
        except FileNotFoundError:
            raise missing_error(self.path_of(file)) from None
        if real_size != size:
            raise altered_error(self.path_of(file), f"{real_size} bytes, its manifest says {size}")
        if sha256 is not None and self.sha256(file) != sha256:
            raise altered_error(self.path_of(file), "its sha256 differs from its manifest's")

    def check_files(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Raise `ElmoError` if one of many files is missing or has another size, using one listing.

        `sizes` are pairs of a file's path below the folder and its size in bytes.
        """
        size_by_path = self.sizes()
        mismatches = [pair for pair in sizes if size_by_path.get(pair[0]) != pair[1]]
        in_parallel(lambda pair: self.check_file(pair[0], size=pair[1]), mismatches)

    def delete(self, file: str) -> None:
        """Delete a file; do nothing if it does not exist."""
        if self.local is not None:
            (self.local / file).unlink(missing_ok=True)
            return
        with suppress(FileNotFoundError), self._remote.connect(file) as (fs, path):
            fs.rm_file(path)

    def delete_all(self, files: Iterable[str]) -> None:
        """Delete many files, in parallel."""
        in_parallel(self.delete, files)

    def write(self, file: str, data: bytes) -> None:
        """Write a whole small file, atomically replacing one of that name."""
        if self.local is None:
            with self._remote.connect(file) as (fs, path):
                fs.pipe_file(path, data)
            return
        with self.new_file(file) as new_file:
            new_file.write_bytes(data)

    def write_json(self, file: str, value: Any) -> None:
        """Write a value as JSON, like `elmo.io.atomic.write_json`, atomically replacing the
        file."""
        self.write(file, json_bytes(value, source=self.path_of(file)))

    @contextmanager
    def new_file(self, file: str) -> Iterator[Path]:
        """Yield the path of a local file to write; on success it atomically replaces `file`."""
        with self.temporary_file(file) as path:
            yield path
            if self.local is not None:
                os.replace(path, self.local / file)
            else:
                self.put(file, path)

    def put(self, file: str, source: Path) -> None:
        """Copy a local file into the folder, replacing one of that name."""
        if self.local is not None:
            with self.new_file(file) as new_file:
                shutil.copyfile(source, new_file)
            return
        with self._remote.connect(file) as (fs, path):
            fs.put_file(str(source), path)

    def get(self, file: str, local_path: Path) -> None:
        """Copy a file from the folder to a local path."""
        if self.local is not None:
            shutil.copyfile(self.local / file, local_path)
            return
        with self._remote.connect(file) as (fs, remote_path):
            fs.get_file(remote_path, str(local_path))

    def get_all(self, files: Iterable[str], folder: Path) -> None:
        """Copy files from the folder into a local one, in parallel."""
        copies = {file: folder / file for file in files}
        for parent in {copy.parent for copy in copies.values()}:
            parent.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda file: self.get(file, copies[file]), copies)

    def create(self, file: str, data: bytes) -> bool:
        """Write a whole small file unless one of that name exists; return whether it was written.

        Raises `ElmoError` for an object store without conditional writes, where one of two writers
        would silently lose its work.
        """
        if self.local is not None:
            with self.temporary_file(file) as new_file:
                new_file.write_bytes(data)
                return self.publish(new_file, file)
        self._remote.check_conditional_writes()
        try:
            with self._remote.connect(file) as (fs, path):
                fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def publish(self, source: Path, file: str) -> bool:
        """Give the local file `source`, from `temporary_file`, the name `file` in this folder,
        unless the name is taken; return whether it got the name.

        At a URL, the content must determine the name, because two writers may both upload the file.
        """
        if self.local is None:
            if not (is_taken := self.exists(file)):
                self.put(file, source)
            return not is_taken
        (self.local / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, self.local / file)  # the only call that fails if the name is taken
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._copy_if_absent(source, self.local / file)
        return True

    def take_file(self, file: str, source: "Location") -> None:
        """Take over `file` from the folder `source`, under the same name, unless this folder
        already has it.

        On one disk the file is moved; between URLs of one store it is copied without passing
        through this machine.
        """
        if self.exists(file):
            return
        if self.local is not None and source.local is not None:
            (self.local / file).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(source.local / file, self.local / file)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        elif self.local is None and source.local is None:
            with (
                self._remote.connect(file) as (fs, path),
                source._remote.connect(file) as (source_fs, source_path),
            ):
                if fs.protocol == source_fs.protocol:
                    fs.cp_file(source_path, path)
                    return
        with source.local_copy(file) as copy:
            self.put(file, copy)

    def take_files(self, files: Iterable[str], source: "Location") -> None:
        """Take over many files from the folder `source`, as `take_file` does, in parallel."""
        in_parallel(lambda file: self.take_file(file, source), files)

    @contextmanager
    def temporary_file(self, file: str) -> Iterator[Path]:
        """Yield the local path of a new file, to write and pass to `publish` as `file`; it is
        deleted afterwards.

        It is in a hidden folder beside `file`, or for a URL in the user's folder for temporary
        files.
        """
        with hidden_folder((self.local or temporary_folder()) / file) as folder:
            yield folder / "file"

    @contextmanager
    def local_copy(self, file: str) -> Iterator[Path]:
        """Yield a local path of a file: the file itself, or a temporary copy if it is at a URL."""
        if self.local is not None:
            yield self.local / file
            return
        with self.temporary_file(file) as copy:
            self.get(file, copy)
            yield copy

    def remove(self) -> None:
        """Delete the folder and its content; at a URL JSON files, such as manifests, first."""
        if self.local is not None:
            shutil.rmtree(self.local, ignore_errors=True)
            return
        self.delete_all(name for name in self.sizes() if name.endswith(".json"))
        with suppress(FileNotFoundError), self._remote.connect("") as (fs, path):
            fs.rm(path.rstrip("/"), recursive=True)

    def _copy_if_absent(self, source: Path, path: Path) -> bool:
        """Create a file by copying, on a file system without hard links."""
        try:
            out = path.open("xb")
        except FileExistsError:
            return False
        try:
            with out, source.open("rb") as stream:
                shutil.copyfileobj(stream, out, 1 << 20)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return True

    def _absolute_url(self) -> str:
        return self.url if self.local is None else os.path.abspath(self.local)


Folder = str | Path | Location  # as users of the library name one: a path, or a URL as a string


def files_below(folder: Path) -> dict[str, os.stat_result]:
    """Return the status of each file in a folder and its subfolders, by its path below it.

    Files that another process deletes meanwhile are left out. A missing folder has no files.
    """

    def raise_unless_missing(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    status_by_path = {}
    for root, _, names in os.walk(folder, onerror=raise_unless_missing):
        for name in names:
            path = Path(root, name)
            with suppress(FileNotFoundError):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    status_by_path[path.relative_to(folder).as_posix()] = status
    return status_by_path


def temporary_folder() -> Path:
    """Return the user's folder for temporary copies of files at URLs; create it if necessary."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"elmo-{user}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
