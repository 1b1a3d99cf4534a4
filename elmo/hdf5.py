"""HDF5, for the files of 2018 alone: h5py is needed only where one is read or written."""

from pathlib import Path
from typing import Any

from elmo.errors import ElmoError


def load_h5py() -> Any:
    """The module h5py, or `ElmoError` saying how to install it."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise ElmoError("2018 files need h5py; run: pip install 'elmo-pipeline[legacy]'") from None
    return h5py


def open_hdf5(path: Path) -> Any:
    """Open a file to read; `ElmoError` where it is absent or no HDF5."""
    h5py = load_h5py()
    if not path.is_file():
        raise ElmoError(f"{path}: no such file")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ElmoError(f"{path}: not an HDF5 file, or cut short ({error})") from None
