"""Checks of an output before the work begins: whether it can be written, and what it may replace.

Only this project's own files are replaced, and nothing at a URL is.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from elmo.errors import ElmoError
from elmo.io.location import Location
from elmo.io.records import Header


def check_file(out: Path, *, pattern: bytes = b"") -> None:
    """Raise `ElmoError` if an output file is a link, a folder, a device, or a file of another kind.

    `pattern` is a regular expression that the first KiB of a file of the right kind matches (empty:
    any file does).
    """
    _check_path(out)
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


@contextmanager
def refuse_foreign_output(out: Path | str) -> Iterator[None]:
    """Reword an `ElmoError` that reading the existing output `out` raises within the context: it
    then says that this command did not write `out`."""
    try:
        yield
    except ElmoError as error:
        reason = str(error).removeprefix(f"{out}").lstrip(": /")
        raise ElmoError(
            f"{out}: was not written by this command ({reason}); choose another or delete it"
        ) from None


def check_folder(
    out: Location,
    *,
    required: Sequence[str],
    pattern: str = ".*",
    kind: str | None = None,
) -> None:
    """Raise `ElmoError` if an output folder holds another stage's files, or files that this project
    did not write.

    The folder may be empty, or hold all `required` files and otherwise only hidden files and those
    that the regular expression `pattern` matches, in subfolders too. If `kind` is given, its
    `manifest.json` must state that kind. At a URL nothing is replaced: the first of `required` must
    not exist.
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
    """Return the files in a folder and its subfolders; raise `ElmoError` if this project did not
    write it."""
    _check_path(out)
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
    """Raise `ElmoError` if a folder, or a subfolder, holds a file that no stage has written.

    Hidden files are allowed, since file managers create them.
    """
    for name in sorted(names):
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if not (is_hidden or name in required or re.fullmatch(pattern, name)):
            raise ElmoError(
                f"{out}: contains {name}, which no stage wrote; move it or choose another folder"
            )


def _check_path(out: Path) -> None:
    check_parent(out)
    if out.is_symlink():
        raise ElmoError(
            f"{out}: is a symbolic link to {os.readlink(out)}; use that path, or delete the link"
        )


def check_parent(out: Path) -> None:
    """Raise `ElmoError` if the nearest existing parent of an output path is not a folder."""
    parent = next((path for path in out.parents if os.path.lexists(path)), Path())
    if not parent.is_dir():
        raise ElmoError(f"{out}: {parent} is not a folder; choose another output")
