"""Writes folders completely or not at all, locally or at a URL.

Only this project's files are replaced, and nothing at a URL.
"""

import ctypes
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elmo.errors import ElmoError
from elmo.io.atomic import check_output_path, hidden_folder, hidden_path
from elmo.io.location import Location, in_parallel, temporary_folder
from elmo.io.records import Header

_AT_FDCWD = -100  # relative paths start at the current folder
_RENAME_EXCHANGE = 2


def check_output_folder(
    out: Location, *, required: Sequence[str], pattern: str = ".*", kind: str | None = None
) -> None:
    """Raise `ElmoError` if an output folder has files of another stage or another program.

    The folder may be empty, or have all `required` files and otherwise, in subfolders too, only
    hidden files and files that match the regular expression `pattern`. If `kind` is given, its
    `manifest.json` must state that kind. At a URL, the first of `required` must not exist.
    """
    files = set(out.names()) if out.local is None else _list_files(out.local, required=required)
    if out.local is None and required and required[0] in files:
        raise ElmoError(
            f"{out}: already exists, and outputs at a URL are never replaced; choose a new folder"
        )
    # At a URL, `files` can only be the leftovers of a killed writer.
    _check_names(str(out), files, required=required, pattern=pattern)
    if kind is not None and out.local is not None and files:
        actual_kind = out.read_record("manifest.json", Header).kind
        if actual_kind != kind:
            raise ElmoError(
                f"{out}: holds {actual_kind}, not {kind}; choose another folder, or empty it"
            )


def _list_files(out: Path, *, required: Sequence[str]) -> set[str]:
    """Return the files below a folder; raise `ElmoError` if this project did not write it."""
    check_output_path(out)
    if not out.exists():
        return set()
    if not out.is_dir():
        raise ElmoError(f"{out}: is a file, not a folder; choose another or delete it")
    names = {path.name for path in out.iterdir()}
    if names and not (required and names.issuperset(required)):
        raise ElmoError(
            f"{out}: was not written by this project (found {min(names)}); choose another folder "
            "or empty it"
        )
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}


def _check_names(out: str, names: Iterable[str], *, required: Sequence[str], pattern: str) -> None:
    """Raise `ElmoError` if a folder, or a subfolder, has a file that no stage wrote.

    Hidden files are allowed, because file managers create them.
    """
    for name in sorted(names):
        is_hidden = any(component.startswith(".") for component in name.split("/"))
        if not (is_hidden or name in required or re.fullmatch(pattern, name)):
            raise ElmoError(
                f"{out}: contains {name}, which no stage wrote; move it or choose another folder"
            )


@contextmanager
def new_folder(
    out: Location, *, required: Sequence[str] = (), pattern: str = ".*", kind: str | None = None
) -> Iterator[Path]:
    """Yield an empty local folder that becomes `out` on success and is deleted on failure.

    An existing `out` is replaced at the end, on Linux in one step, but refused at the start unless
    `check_output_folder` accepts it with the same arguments. At a URL, where nothing is replaced,
    files are uploaded at the end, the first required one last, so readers see all or nothing.
    """
    check_output_folder(out, required=required, pattern=pattern, kind=kind)
    if out.local is None:
        with tempfile.TemporaryDirectory(dir=temporary_folder()) as name:
            yield Path(name)
            _upload_all(Path(name), out, last_files=required[:1])
        return
    with hidden_folder(out.local) as new_path:
        yield new_path
        check_output_folder(out, required=required, pattern=pattern, kind=kind)
        if not out.local.exists():
            os.rename(new_path, out.local)
        elif not _exchange(new_path, out.local):
            old_path = hidden_path(out.local)
            os.rename(out.local, old_path)
            os.rename(new_path, out.local)
            shutil.rmtree(old_path, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Exchange two paths in one step, so that neither is ever missing; return false on failure."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # only on Linux; not in `os`
    return bool(
        rename
        and not rename(
            _AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), ctypes.c_uint(_RENAME_EXCHANGE)
        )
    )


def _upload_all(folder: Path, out: Location, *, last_files: Sequence[str]) -> None:
    all_paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    last_paths = [folder / name for name in last_files]

    def put_file(path: Path) -> None:
        out.put(path.relative_to(folder).as_posix(), path)

    in_parallel(put_file, [path for path in all_paths if path not in last_paths])
    in_parallel(put_file, last_paths)


@contextmanager
def output_location(
    out: Location, *, required: Sequence[str] = (), pattern: str = ".*", kind: str | None = None
) -> Iterator[Location]:
    """Yield the empty location in which to write the files of the folder `out`.

    Locally it is a new folder that replaces `out` on success, as with `new_folder`. At a URL, where
    nothing is replaced, it is `out` itself; write its manifest last.
    """
    if out.local is None:
        check_output_folder(out, required=required)
        yield out
        return
    with new_folder(out, required=required, pattern=pattern, kind=kind) as new_path:
        yield Location(new_path)


@contextmanager
def local_folder(location: Location) -> Iterator[Path]:
    """Yield a local path of a folder: the folder itself, or for a URL a temporary copy of its files
    without subfolders.

    An `ElmoError` that names the copy is reworded to name the URL.
    """
    if location.local is not None:
        yield location.local
        return
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as name:
        location.get_all(location.names(), Path(name))
        try:
            yield Path(name)
        except ElmoError as error:
            raise ElmoError(str(error).replace(name, location.url)) from error


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Create `target` as a hard link of a file, or a copy if the file system cannot link.

    Use it only for files that never change.
    """
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def link_folder(source: Path, target: Path) -> None:
    """Create the folder `target` with hard links, or copies, of all files of a folder and its
    subfolders. Use it only for files that never change."""
    for path in [path for path in sorted(source.rglob("*")) if path.is_file()]:
        new_path = target / path.relative_to(source)
        new_path.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, new_path)


class Flag:
    """A file whose existence is a signal, with the methods of `Path`; it may be at a URL."""

    def __init__(self, location: Location, file: str) -> None:
        self.location, self.file = location, file

    def exists(self) -> bool:
        """Tell whether the file exists."""
        return self.location.exists(self.file)

    def touch(self) -> None:
        """Raise the flag: create the file."""
        self.location.write(self.file, b"")

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the file, which ends the signal; do nothing if it does not exist."""
        self.location.delete(self.file)
