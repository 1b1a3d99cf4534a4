"""Opening and creating HDF5 files, of any content; h5py is imported only when one is needed."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.errors import Damaged, ElmoError, NotFound
from elmo.io.atomic import new_file_if_absent


def load_h5py() -> Any:
    """Import and return h5py; raise `ElmoError`, with how to install it, if it is missing."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise ElmoError("2018 files need h5py; run: pip install 'elmo-pipeline[legacy]'") from None
    return h5py


def open_hdf5(path: Path) -> Any:
    """Open an HDF5 file for reading, as an h5py file; raise `ElmoError` if it is missing or
    invalid."""
    h5py = load_h5py()
    if not path.is_file():
        raise NotFound(f"{path}: no such file")
    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise Damaged(f"{path}: not an HDF5 file, or cut short ({error})") from None


def read_dataset(file: Any, path: Path, name: str) -> Any:
    """Return a dataset of the open HDF5 file `file`, whose values are in this file; None if it is
    missing.

    `ElmoError` is raised for soft and external links, external storage and virtual datasets, by
    which a file can name any other file, and for a damaged one. `path` is named in messages.
    """
    h5py = load_h5py()
    try:
        group, parts = file, name.split("/")
        for part in parts:
            if not isinstance(group, h5py.Group) or group.get(part, getlink=True) is None:
                return None
            if not isinstance(group.get(part, getlink=True), h5py.HardLink):
                raise ElmoError(f"{path}: {name} is a link; use a plain dataset")
            group = group[part]
        if not isinstance(group, h5py.Dataset):
            return None
        if group.external or group.is_virtual:
            raise ElmoError(f"{path}: {name} is stored in other files; use a plain dataset")
        return group
    except HDF5_ERRORS as error:
        raise damaged_error(path, error) from None


def read_values(dataset: Any, path: Path) -> Any:
    """Return all values of a dataset; raise `Damaged`, which names `path`, if they are damaged."""
    try:
        return dataset[...]
    except HDF5_ERRORS as error:
        raise damaged_error(path, error) from None


HDF5_ERRORS = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
)  # of h5py, by what is damaged


def damaged_error(path: Path, error: Exception) -> Damaged:
    """Return the error of an HDF5 file in which something cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return Damaged(f"{path}: damaged HDF5 file ({reason}); get it again")


@contextmanager
def create_hdf5(out: Path, *, keep_same: bool = False) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Yield a new h5py file, which becomes `out` on success, and a function that you must call
    after each dataset.

    The function raises the error if a write failed, as on a full disk, where the HDF5 library
    itself would crash the process. An existing `out` is refused unless it is empty; with
    `keep_same`, it is kept if its bytes are the same.
    """
    h5py = load_h5py()
    with new_file_if_absent(out, keep_same=keep_same) as path, open(path, "w+b", 0) as file:
        stream = _Unfailing(file)
        try:
            with h5py.File(stream, "w") as hdf5:
                yield hdf5, stream.check
        finally:
            stream.check()


class _Unfailing(io.RawIOBase):
    """A binary file that records its first error instead of raising it.

    Later writes go to memory. They are few, since the writer calls `check` after each dataset.
    """

    def __init__(self, file: io.FileIO) -> None:
        super().__init__()
        self._file = file
        self._position = self._end = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []  # what was written after the error

    def check(self) -> None:
        """Raise the recorded error, if any."""
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start, stop = self._position, min(self._position + len(view), self._end)
        size = max(0, stop - start)
        data = bytearray(os.pread(self._file.fileno(), size, start).ljust(size, b"\0"))
        for offset, chunk in self._unwritten:
            begin, end = max(start, offset), min(stop, offset + len(chunk))
            if begin < end:
                data[begin - start : end - start] = chunk[begin - offset : end - offset]
        view[:size] = data
        self._position += size
        return size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        byte_count = 0
        try:
            while self._error is None and byte_count < len(view):
                offset = self._position + byte_count
                byte_count += os.pwrite(self._file.fileno(), view[byte_count:], offset)
        except OSError as error:
            self._error = error
        if byte_count < len(view):
            self._unwritten.append((self._position + byte_count, bytes(view[byte_count:])))
        self._position += len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._position if size is None else size
        try:
            if self._error is None:
                self._file.truncate(self._end)
        except OSError as error:
            self._error = error
        return self._end
