"""Folders at a URL as folders of files on this machine: written whole or not at all, and read.

What is on a disk is used where it is.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.errors import BadSettings, ElmoError, altered, missing
from elmo.io import atomic, records
from elmo.io.location import Folder, Location, in_parallel, scratch

CACHE = "ELMO_CACHE"  # the variable that names the folder of copies
CACHE_GB = "ELMO_CACHE_GB"  # and the one that says how much they take at most
_COPY = re.compile("[0-9a-f]{64}")
_LOOK = 2.0  # seconds between two looks at a URL for a file that tells something


def user_cache() -> Path:
    """The user's folder of what can be made again; it may not be there."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "elmo"


def absolute(folder: Folder) -> Folder:
    """A path that holds in any working folder, or the URL as it is."""
    return str(folder) if "://" in str(folder) else Path(folder).absolute()


def name_of(folder: Folder) -> str:
    """The last part of a path or URL."""
    return str(folder).rstrip("/").rpartition("/")[2]


@contextmanager
def new_folder(
    out: Folder, *, ours: Sequence[str] = (), also: str = ".*", kind: str | None = None
) -> Iterator[Path]:
    """Yield an empty local folder that becomes `out` on success, as `atomic.new_folder` does.

    For a URL it is a temporary one whose files, those of its folders too, are put there in the end,
    the first of `ours` last: readers see all or nothing.
    """
    location = Location.of(out)
    if location.local is not None:
        with atomic.new_folder(location.local, ours=ours, also=also, kind=kind) as new:
            yield new
        return
    check_folder(location, ours=ours, also=also, kind=kind)
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        new = Path(name)
        yield new
        written = [path for path in sorted(new.rglob("*")) if path.is_file()]
        last = [new / one for one in ours[:1]]

        def put(path: Path) -> None:
            location.put(path.relative_to(new).as_posix(), path)

        in_parallel(put, [path for path in written if path not in last])
        in_parallel(put, last)


@contextmanager
def empty_folder(
    out: Folder, *, ours: Sequence[str] = (), also: str = ".*", kind: str | None = None
) -> Iterator[Location]:
    """Yield where to write the files of `out`: on a disk a new folder, which replaces `out` on
    success; at a URL, where nothing is replaced, `out` itself, its manifest last."""
    location = Location.of(out)
    if location.local is not None:
        with atomic.new_folder(location.local, ours=ours, also=also, kind=kind) as new:
            yield Location(new)
        return
    check_folder(location, ours=ours)
    yield location


def check_folder(
    location: Location,
    *,
    ours: Sequence[str],
    also: str = ".*",
    kind: str | None = None,
    never: str = "",
) -> None:
    """Refuse an output folder that holds what is not this project's, or is another stage's: see
    `elmo.io.atomic.check_folder`. At a URL nothing is replaced."""
    if location.local is not None:
        atomic.check_folder(location.local, ours=ours, also=also, kind=kind, never=never)
        return
    names = location.names()
    if ours and ours[0] in names:
        raise ElmoError(
            f"{location}: is there already, and at a URL nothing is replaced; choose a new folder"
        )
    atomic.check_names(str(location), names, ours=ours, also=also)  # of a writer that was killed
    if never in names:
        raise ElmoError(f"{location}: holds {never}, another output; choose another folder")


@contextmanager
def local_folder(folder: "Folder | Location") -> Iterator[Path]:
    """Yield the folder, or for a URL a copy of its files that lasts as long as this does.

    An `ElmoError` that names the copy names the URL instead.
    """
    location = Location.of(folder)
    if location.local is not None:
        yield location.local
        return
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        in_parallel(lambda file: location.get(file, Path(name, file)), location.names())
        try:
            yield Path(name)
        except ElmoError as error:
            raise ElmoError(str(error).replace(name, location.url)) from error


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Share the bytes of a file that never changes; copy where the file system cannot."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)


def link_folder(source: Path, target: Path) -> None:
    """Share the files of a folder, and of the folders in it."""
    for path in [path for path in sorted(source.rglob("*")) if path.is_file()]:
        there = target / path.relative_to(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, there)


def cached(location: Location, file: str, *, sha256: str) -> Path:
    """A local path of a file's bytes: its own, or a copy that this machine keeps, by its digest.

    Another process may need the room and remove a copy that is not open: ask again then.
    """
    if location.local is not None:
        return location.local / file
    folder = Location(os.environ.get(CACHE) or scratch() / "cache")
    assert folder.local is not None
    path = folder.local / sha256
    with suppress(FileNotFoundError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # used last now
        return path
    if not location.exists(file):
        raise missing(location.name(file))
    with folder.new(sha256) as new:
        location.get(file, new)
        if records.sha256(new) != sha256:
            raise altered(location.name(file), "its sha256 is not its manifest's")
    _make_room(folder.local, keep=sha256)
    return path


def _make_room(folder: Path, *, keep: str) -> None:
    """Remove the copies that were used least lately, but for `keep`, where they take too much.

    They may take what the variable says, or else half of the room that there is with them.
    """
    Location(folder).sweep()
    copies = []
    for name in filter(_COPY.fullmatch, os.listdir(folder)):
        with suppress(FileNotFoundError):
            copies.append(((folder / name).stat(), name))
    taken = sum(status.st_size for status, _ in copies)
    given = os.environ.get(CACHE_GB)
    most = _gigabytes(given) if given else (shutil.disk_usage(folder).free + taken) / 2
    for status, name in sorted(copies, key=lambda copy: copy[0].st_atime_ns):
        if taken > most and name != keep:
            (folder / name).unlink(missing_ok=True)
            taken -= status.st_size


def _gigabytes(text: str) -> float:
    try:
        return float(text) * 1e9
    except ValueError:
        raise BadSettings(f"{CACHE_GB} must be a number of gigabytes, found {text!r}") from None


class Flag:
    """A file that tells something by being there, as a `Path` would, but at a URL it is looked for
    every 2 seconds only."""

    def __init__(self, location: Location, file: str) -> None:
        self.location, self.file = location, file
        self._looked, self._seen = -_LOOK, False

    def exists(self) -> bool:
        """Tell whether it is there."""
        if self.location.local is None:
            if time.monotonic() - self._looked < _LOOK:
                return self._seen
            self._looked = time.monotonic()
        self._seen = self.location.exists(self.file)
        return self._seen

    def touch(self) -> None:
        """Put it there."""
        self.location.write(self.file, b"")
        self._looked = -_LOOK

    def unlink(self, missing_ok: bool = True) -> None:
        """Take it away."""
        self.location.delete(self.file)
        self._looked = -_LOOK
