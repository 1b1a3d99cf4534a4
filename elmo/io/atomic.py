"""Files and folders written whole or not at all, and the locks of those who write."""

import fcntl
import filecmp
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError, reason_of
from elmo.io.records import json_bytes, read_record

LOCK = ".lock"  # the file in a work folder that its owner holds
_TRIES = 100  # of a folder that other writers may remove before it is locked


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """Yield a path in a hidden folder beside `out`; it becomes `out` on success and vanishes on any
    failure. What killed writers of `out` left is removed."""
    check_file(out)
    with beside(out) as folder:
        yield folder / out.name
        os.replace(folder / out.name, out)


@contextmanager
def new_output(out: Path, *, same: bool = False) -> Iterator[Path]:
    """Like `new_file`, for a file that a user names: one that is there is never replaced, and what
    killed writers of `out` left is removed. With `same`, one that has the same bytes is left."""
    if not same:
        check_absent(out)
    with beside(out) as folder:
        yield folder / out.name
        if not (same and out.is_file() and filecmp.cmp(folder / out.name, out, shallow=False)):
            check_absent(out)
            os.replace(folder / out.name, out)


def check_above(out: Path) -> None:
    """Refuse an output below what is no folder."""
    above = next((path for path in out.parents if os.path.lexists(path)), Path())
    if not above.is_dir():
        raise ElmoError(f"{out}: {above} is no folder; choose another output")


def check_writable(out: Path) -> None:
    """Fail as writing `out` would, before the work that it is to hold."""
    with _locked_folder(out):
        pass


def check_absent(out: Path) -> None:
    """Refuse an output file that exists and is not empty, once what killed writers of it left is
    removed: one may have been killed after `out` was there."""
    check_file(out)
    if out.exists() and out.stat().st_size:
        sweep_beside(out)
        raise ElmoError(
            f"{out}: exists, and is not replaced; delete it, choose another or pass --overwrite"
        )


def check_file(out: Path, *, ours: bytes = b"") -> None:
    """Refuse an output file that is a link, a folder, or does not begin as files of its kind do:
    by the regular expression `ours`, in the first KiB."""
    check_above(out)
    if out.is_symlink():
        raise ElmoError(
            f"{out}: is a symbolic link to {os.readlink(out)}; use that path, or delete the link"
        )
    if out.is_dir():
        raise ElmoError(f"{out}: is a folder; choose a file")
    if out.exists() and not out.is_file():
        raise ElmoError(f"{out}: is a pipe or a device; choose a file")
    if ours and out.exists():
        with out.open("rb") as file:
            head = file.read(1024)
        if head and not re.match(ours, head, re.DOTALL):
            raise ElmoError(
                f"{out}: is a file of another kind, and is not replaced; choose another, or "
                "delete it"
            )


def check_output(out: Path, *, ours: bytes = b"") -> None:
    """Refuse, before work, an output file as `check_file` does, or where none can be made."""
    check_file(out, ours=ours)
    above = next(path for path in out.absolute().parents if path.is_dir())
    probe = above / f".{uuid.uuid4().hex[:8]}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise ElmoError(
            f"{out}: {above} takes no files ({error.strerror}); choose another path"
        ) from None


def check_record(out: Path, kind: Any) -> None:
    """Refuse, before work, an output file that does not read as the JSON that is to be written."""
    check_output(out, ours=rb"\s*[{\[]")
    if out.exists() and out.stat().st_size:
        with replaceable(out):
            read_record(out, kind)


@contextmanager
def replaceable(out: Path | str) -> Iterator[None]:
    """Say of what can't be read that it is not replaced."""
    try:
        yield
    except ElmoError as error:
        reason = str(error).removeprefix(f"{out}").lstrip(": /")
        raise ElmoError(
            f"{out}: is no output of this command ({reason}), and is not replaced: choose another, "
            "or delete it"
        ) from None


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `out`, locked as long as its writer lives, gone at the end
    unless it was renamed. What killed writers of `out` left is removed; an error names `out`."""
    try:
        with _locked_folder(out) as folder:
            yield folder
    except BaseException as error:
        _say_where(error, out)
        raise


@contextmanager
def _locked_folder(out: Path) -> Iterator[Path]:
    """The folder of `beside`. An interrupt may come between any two lines. Folders above that were
    made for nothing are gone too."""
    sweep_beside(out)
    made = [path for path in out.absolute().parents if not path.exists()]
    folder, lock, left = hidden_name(out), -1, _TRIES
    try:
        while True:
            try:
                folder.mkdir(parents=True)
                lock = os.open(folder, os.O_RDONLY)
            except FileNotFoundError:  # another writer's sweep came between, or its rmdir
                left -= 1
                if not left:  # or no folder can be made there
                    raise
                continue
            take_lock(lock)
            if folder.exists():  # else that sweep has had the lock first
                break
            os.close(lock)
            lock = -1
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)
        for path in made:
            with suppress(OSError):  # it holds something
                path.rmdir()


def take_lock(file: int, *, shared: bool = False, wait: bool = True) -> bool | None:
    """Lock an open file or folder until it is closed or the process ends, for this process alone or
    `shared` with others; return whether it is held, None where the file system has no locks."""
    try:
        fcntl.flock(
            file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        )
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def sweep_beside(out: Path) -> None:
    """Remove the hidden folders that killed writers of `out` left: no process holds their locks."""
    hidden = re.compile(_hidden(out))
    for path in out.parent.iterdir() if out.parent.is_dir() else ():
        if hidden.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            with suppress(OSError):
                lock = os.open(path, os.O_RDONLY)
                try:
                    if take_lock(lock, wait=False):
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def sweep(folder: Path) -> None:
    """Remove what writers killed in `new_folder` and `new_file` left in `folder`, whatever its name
    was to be. Call it where nobody else writes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) is None:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a work folder; `ElmoError` naming its owner where another process does.

    The system releases it when the process ends, however that happens. A folder that is left by an
    error with nothing else in it is removed.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a+", encoding="utf-8") as file:
            held = take_lock(file.fileno(), wait=False)
            if held is None:
                raise ElmoError(f"{folder}: its file system has no locks; choose another folder")
            if not held:
                file.seek(0)
                owner = file.read(256).strip() or "another process"
                raise ElmoError(f"{folder}: {owner} is at work here; wait for it, or stop it")
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # its owner has just removed the folder
            try:
                _write_owner(file.fileno(), folder)
                yield
            except BaseException:
                with suppress(OSError):
                    if os.listdir(folder) == [LOCK]:  # nothing to resume from
                        shutil.rmtree(folder)
                        folder.parent.rmdir()  # unless it holds other work
                raise
            return


def _write_owner(lock: int, folder: Path) -> None:
    try:
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        _say_where(error, folder)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with sorted keys: the same value always gives the same bytes.

    A number that is not finite becomes null, since JSON has none such.
    """
    check_file(path, ours=rb"\{" if isinstance(value, dict) else rb"\[")
    data = json_bytes(value, source=str(path))
    with new_file(path) as beside:
        beside.write_bytes(data)


def _say_where(error: BaseException, out: Path) -> None:
    """Name what was being written where the system did not, named what was copied to it, or the
    hidden folder."""
    hidden = re.compile(rf"{_hidden(out)}(/[^:]*)?")
    if isinstance(error, ElmoError) and hidden.search(str(error)):
        raise type(error)(hidden.sub(out.name, str(error))) from error
    if isinstance(error, OSError):
        named = error.filename is not None and error.filename2 is None
        if not (named and hidden.search(str(error.filename)) is None):
            raise ElmoError(f"{out}: {reason_of(error)}") from error


def _hidden(out: Path) -> str:
    """The name of a hidden folder beside `out`, as a regular expression."""
    return rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}"


def hidden_name(out: Path) -> Path:
    """Return a free name beside `out` that a sweep knows; the folder they lie in is made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
