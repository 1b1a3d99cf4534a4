"""Writes files completely or not at all, first in a hidden folder beside them; they may replace
only this project's files."""

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from elmo.errors import ElmoError, reason_of
from elmo.io.locks import take_lock
from elmo.io.records import json_bytes, read_record

_MAX_TRIES = 100  # attempts to lock a new folder before other writers delete it


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success that file becomes `out`, replacing any
    existing file, and on failure it is deleted.

    The path is in a hidden folder beside `out`. Hidden folders of killed writers of `out` are
    deleted.
    """
    check_output_file(out)
    with hidden_folder(out) as folder:
        yield folder / out.name
        os.replace(folder / out.name, out)


@contextmanager
def new_file_if_absent(out: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `out` on success, like `new_file`, but raise `ElmoError`
    if a non-empty `out` exists."""
    check_output_absent(out)
    with hidden_folder(out) as folder:
        yield folder / out.name
        check_output_absent(out)
        os.replace(folder / out.name, out)


def check_output_file(out: Path, *, pattern: bytes = b"") -> None:
    """Raise `ElmoError` if an output file is a link, a folder, a device, or another kind of file.

    `pattern` is a regular expression that the first KiB of such a file matches (empty: any).
    """
    check_output_path(out)
    if out.is_dir():
        raise ElmoError(f"{out}: is a folder; choose a file")
    if out.exists() and not out.is_file():
        raise ElmoError(f"{out}: is a pipe or a device; choose a file")
    if pattern and out.exists():
        with out.open("rb") as file:
            head = file.read(1024)
        if head and not re.match(pattern, head, re.DOTALL):
            raise ElmoError(
                f"{out}: already exists and was not written by this command; choose another or "
                "delete it"
            )


def check_output_path(out: Path) -> None:
    """Raise `ElmoError` if an output is a symbolic link, or its parent is not a folder."""
    check_output_parent(out)
    if out.is_symlink():
        raise ElmoError(
            f"{out}: is a symbolic link to {os.readlink(out)}; use that path, or delete the link"
        )


def check_output_parent(out: Path) -> None:
    """Raise `ElmoError` if the nearest existing parent of an output path is not a folder, or the
    path goes back (`..`) from a folder that does not exist."""
    parent = next((path for path in out.parents if os.path.lexists(path)), Path())
    if not parent.is_dir():
        raise ElmoError(f"{out}: {parent} is not a folder; choose another output")
    if ".." in out.parts[len(parent.parts) :]:
        raise ElmoError(f"{out}: .. leaves a folder that does not exist; write the path without it")


@contextmanager
def refuse_foreign_output(out: Path | str) -> Iterator[None]:
    """Reword an `ElmoError` raised in the block, which reads the existing output `out`, to say that
    this command did not write `out`."""
    try:
        yield
    except ElmoError as error:
        reason = str(error).removeprefix(f"{out}").lstrip(": /")
        raise ElmoError(
            f"{out}: was not written by this command ({reason}); choose another or delete it"
        ) from None


def check_writable(out: Path) -> None:
    """Raise the error that creating the file or folder `out` would raise, such as a missing
    permission; call it before long work."""
    with hidden_folder(out):
        pass


def check_output(out: Path, *, pattern: bytes = b"") -> None:
    """Raise `ElmoError` if the output file `out` can't be created or `check_output_file` refuses
    it; call it before long work."""
    check_output_file(out, pattern=pattern)
    check_writable(out)


def check_output_record(out: Path, record_type: Any) -> None:
    """Raise `ElmoError` if the output file `out` cannot be written, or exists and is not a JSON
    record of type `record_type`."""
    check_output(out, pattern=rb"\s*[{\[]")
    if out.exists() and out.stat().st_size:
        with refuse_foreign_output(out):
            read_record(out, record_type)


def check_output_absent(out: Path) -> None:
    """Raise `ElmoError` if an output file exists and is not empty.

    Hidden folders that killed writers of the file left are deleted first.
    """
    check_output_file(out)
    if out.exists() and out.stat().st_size:
        _raise_exists(out)


def check_output_folder_absent(out: Path, *, marker: str) -> None:
    """Raise `ElmoError` if an output folder is complete: it has the file `marker`."""
    if (out / marker).exists():
        _raise_exists(out)


def _raise_exists(out: Path) -> NoReturn:
    sweep_hidden_folders(out)
    raise ElmoError(f"{out}: already exists; delete it, choose another name or pass --overwrite")


@contextmanager
def hidden_folder(out: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the output `out`, in which to write the file that is then
    renamed to `out`. The folder is locked while its writer lives.

    It is deleted at the end unless it was renamed itself, and so are new parent folders that are
    empty. Hidden folders left by killed writers of `out` are deleted, and an `OSError` raised in
    the block is reworded to name `out`. An interrupt may come between any two lines.
    """
    new_parents = [path for path in out.absolute().parents if not path.exists()]
    folder, lock, tries_left = hidden_path(out), -1, _MAX_TRIES
    try:
        sweep_hidden_folders(out)
        while True:
            try:
                folder.mkdir(parents=True)
                lock = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # another writer has deleted it or its parent
                tries_left -= 1
                if not tries_left:  # or no folder can be created there
                    raise
                continue
            take_lock(lock)
            if folder.exists():  # else another writer locked and deleted it first
                break
            os.close(lock)
            lock = -1
        yield folder
    except BaseException as error:
        _name_output(error, out)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        for path in new_parents:
            with suppress(OSError):  # if it is not empty
                path.rmdir()


def sweep_hidden_folders(out: Path) -> None:
    """Delete the hidden folders that killed writers of `out` left: their locks are free."""
    pattern = re.compile(_hidden_pattern(out))
    # This lists names only: a folder may have thousands of files, each written through here.
    for name in os.listdir(out.parent) if out.parent.is_dir() else ():
        path = out.parent / name if name[0] == "." and pattern.fullmatch(name) else None
        if path is not None and path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                lock = os.open(path, os.O_RDONLY)
                try:
                    if take_lock(lock, wait=False):
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def delete_leftovers(folder: Path) -> None:
    """Delete everything that killed writers left in `folder`, whatever they were writing.

    Call it only when no other process writes there.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) is None:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with sorted keys, so that equal values give equal bytes.

    A number that is not finite becomes null, because JSON cannot express it.
    """
    check_output_file(path, pattern=rb"\{" if isinstance(value, dict) else rb"\[")
    data = json_bytes(value, source=str(path))
    with new_file(path) as new_path:
        new_path.write_bytes(data)


def _name_output(error: BaseException, out: Path) -> None:
    """Make an error name the output file instead of the hidden folder in which it was written."""
    pattern = re.compile(rf"{_hidden_pattern(out)}(/[^:]*)?")
    if isinstance(error, ElmoError) and pattern.search(str(error)):
        raise type(error)(pattern.sub(out.name, str(error))) from error
    if isinstance(error, OSError):
        names_one_path = error.filename is not None and error.filename2 is None
        if not (names_one_path and pattern.search(str(error.filename)) is None):
            raise ElmoError(f"{out}: {reason_of(error)}") from error


def _hidden_pattern(out: Path) -> str:
    """Return a regular expression of the names of hidden folders beside `out`."""
    return rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}"


def hidden_path(out: Path) -> Path:
    """Return a new hidden path beside `out`, of the form that `delete_leftovers` deletes."""
    return out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
