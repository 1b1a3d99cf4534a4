"""Files written completely or not at all, and the locks of the processes that write them."""

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
    """Yield a temporary path; on success that file becomes `out`, on failure it is deleted.

    The path is in a hidden folder beside `out`. Hidden folders left by killed writers of `out` are
    deleted.
    """
    check_file(out)
    with beside(out) as folder:
        yield folder / out.name
        os.replace(folder / out.name, out)


@contextmanager
def new_output(out: Path, *, same: bool = False) -> Iterator[Path]:
    """Yield a temporary path that becomes `out` on success, like `new_file`, but never replaces a
    file.

    `ElmoError` is raised if a non-empty `out` exists. With `same`, an existing file with the same
    bytes is accepted and kept.
    """
    if not same:
        check_absent(out)
    with beside(out) as folder:
        yield folder / out.name
        if not (same and out.is_file() and filecmp.cmp(folder / out.name, out, shallow=False)):
            check_absent(out)
            os.replace(folder / out.name, out)


def check_above(out: Path) -> None:
    """Raise `ElmoError` if the nearest existing parent of an output path is not a folder."""
    above = next((path for path in out.parents if os.path.lexists(path)), Path())
    if not above.is_dir():
        raise ElmoError(f"{out}: {above} is no folder; choose another output")


def check_writable(out: Path) -> None:
    """Raise the error that writing `out` would raise, before the work begins."""
    with _locked_folder(out):
        pass


def check_absent(out: Path) -> None:
    """Raise `ElmoError` if an output file exists and is not empty.

    Hidden folders that killed writers of it left are deleted first.
    """
    check_file(out)
    if out.exists() and out.stat().st_size:
        sweep_beside(out)
        raise ElmoError(
            f"{out}: exists, and is not replaced; delete it, choose another or pass --overwrite"
        )


def check_file(out: Path, *, ours: bytes = b"") -> None:
    """Raise `ElmoError` if an output file is a link, a folder, a device, or a file of another kind.

    `ours` is a regular expression that the first KiB of files of the right kind match.
    """
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
    """Raise `ElmoError` as `check_file` does, or if no file can be created there; call it before
    the work."""
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
    """Raise `ElmoError` if an existing output file is not a JSON record of the type to be
    written."""
    check_output(out, ours=rb"\s*[{\[]")
    if out.exists() and out.stat().st_size:
        with replaceable(out):
            read_record(out, kind)


@contextmanager
def replaceable(out: Path | str) -> Iterator[None]:
    """Reword an `ElmoError` about an unreadable file to say that the file is not replaced."""
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
    """Yield a hidden folder beside `out`, locked while its writer lives.

    It is deleted in the end unless it was renamed. Hidden folders left by killed writers of `out`
    are deleted, and an `OSError` names `out`.
    """
    try:
        with _locked_folder(out) as folder:
            yield folder
    except BaseException as error:
        _say_where(error, out)
        raise


@contextmanager
def _locked_folder(out: Path) -> Iterator[Path]:
    """Create the locked folder of `beside`, and delete parent folders that were created in vain.

    An interrupt may come between any two lines.
    """
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
    """Lock an open file or folder until it is closed or the process ends.

    The lock is exclusive unless `shared`. Return whether it was acquired, or None if the file
    system has no locks.
    """
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
    """Delete the hidden folders that killed writers of `out` left: their locks are free."""
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


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a work folder; raise `ElmoError` naming the owner if another process holds
    it.

    The operating system releases the lock when the process ends, however it ends. If an error
    leaves nothing else in the folder, it is deleted.
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
    """Write a value as JSON with sorted keys, so that the same value always gives the same bytes.

    A number that is not finite becomes null, since JSON has no notation for it.
    """
    check_file(path, ours=rb"\{" if isinstance(value, dict) else rb"\[")
    data = json_bytes(value, source=str(path))
    with new_file(path) as beside:
        beside.write_bytes(data)


def _say_where(error: BaseException, out: Path) -> None:
    """Make an error name the output file instead of the hidden folder in which it was written."""
    hidden = re.compile(rf"{_hidden(out)}(/[^:]*)?")
    if isinstance(error, ElmoError) and hidden.search(str(error)):
        raise type(error)(hidden.sub(out.name, str(error))) from error
    if isinstance(error, OSError):
        named = error.filename is not None and error.filename2 is None
        if not (named and hidden.search(str(error.filename)) is None):
            raise ElmoError(f"{out}: {reason_of(error)}") from error


def _hidden(out: Path) -> str:
    """Return a regular expression of the names of hidden folders beside `out`."""
    return rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}"


def hidden_name(out: Path) -> Path:
    """Return an unused hidden name beside `out`, of the form that `sweep` deletes; create its
    parent."""
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
