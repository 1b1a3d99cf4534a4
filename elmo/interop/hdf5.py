"""Opening and creating HDF5 files, of any content; h5py is imported only when one is needed."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.errors import Damaged, ElmoError
from elmo.io.atomic import new_file_if_absent
from elmo.io.records import check_readable


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
    check_readable(path)
    try:
        return h5py.File(path, "r")
    except (OSError, RuntimeError, ValueError) as error:
        raise Damaged(f"{path}: not an HDF5 file, or cut short ({error}); restore it") from None


def read_dataset(file: Any, path: Path, name: str) -> Any:
    """Return a dataset of the open HDF5 file `file`; None if it is missing. `ElmoError`, which
    names `path`, is raised if it is damaged."""
    try:
        dataset = file.get(name)
    except HDF5_ERRORS as error:
        raise damaged_error(path, error) from None
    return dataset if isinstance(dataset, load_h5py().Dataset) else None


def read_values(dataset: Any, path: Path) -> Any:
    """Return all values of a dataset; raise `Damaged`, which names `path`, if they are damaged."""
    try:
        return dataset[...]
    except HDF5_ERRORS as error:
        raise damaged_error(path, error) from None


# h5py raises any of these for a damaged file.
HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def damaged_error(path: Path, error: Exception) -> Damaged:
    """Return the error to raise if h5py failed with `error` on reading the file `path`."""
    reason = " ".join(str(error).split())[:200]
    return Damaged(f"{path}: damaged HDF5 file ({reason}); get it again")


@contextmanager
def create_hdf5(out: Path, *, keep_same: bool = False) -> Iterator[Any]:
    """Yield a new h5py file in memory, which is written to `out` on success.

    Written to a full disk, the HDF5 library itself would crash the process.
    An existing `out` is refused unless it is empty; with `keep_same`, it is kept if its bytes are
    the same.
    """
    h5py = load_h5py()
    with new_file_if_absent(out, keep_same=keep_same) as path:
        content = io.BytesIO()
        with h5py.File(content, "w") as file:
            yield file
        path.write_bytes(content.getbuffer())
