"""Locks for processes that write: on work folders, and on the hidden folders of unfinished files.

The operating system releases a lock when its process ends, however it ends.
"""

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from elmo.errors import ElmoError, reason_of

LOCK_FILE = ".lock"  # in a work folder, locked by the process that works there


def take_lock(descriptor: int, *, wait: bool = True) -> bool | None:
    """Lock an open file or folder, given by its descriptor, until it is closed or the process ends.

    With `wait=False`, do not wait for a lock that another process holds. Return whether the lock
    was acquired, or None if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextmanager
def work_folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a work folder; raise `ElmoError`, which names the owner, if it is taken.

    If an error leaves nothing else in the folder, it is deleted.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
            is_locked = take_lock(file.fileno(), wait=False)
            if is_locked is None:
                raise ElmoError(f"{folder}: cannot lock files there; choose another file system")
            if not is_locked:
                file.seek(0)
                owner = file.read(256).strip() or "another process"
                raise ElmoError(f"{folder}: {owner} is working here; wait for it or stop it")
            if os.fstat(file.fileno()).st_nlink == 0:
                continue  # its owner has just removed the folder
            try:
                _write_owner(file.fileno(), folder)
                yield
            except BaseException:
                with suppress(OSError):
                    if os.listdir(folder) == [LOCK_FILE]:  # nothing to resume from
                        shutil.rmtree(folder)
                        folder.parent.rmdir()  # unless it holds other work
                raise
            return


def _write_owner(lock: int, folder: Path) -> None:
    try:
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        raise ElmoError(f"{folder}: {reason_of(error)}") from error
