"""A spool: records wait in a file until a server takes them, so that no caller waits for it.

Each writer has a file of its own, locked for as long as it lives. A thread sends the records in
order. Records of a writer that died are sent by the next one that opens the folder. A record may be
sent twice (its writer killed after sending it, before marking it sent), so sending must be
idempotent.
"""

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmo.io.locks import take_lock

SpooledRecord = dict[str, Any]
_BATCH = 1 << 16  # bytes read at a time
FLUSH = 60.0  # seconds a finished stage waits for its last figures to go out
_PAUSES = (0.5, 1, 2, 5, 10, 30)  # seconds after each failure in a row


class Refused(Exception):
    """The error that `send` raises for records that the server never takes: they are dropped."""


@dataclass
class _File:
    """One file of records: those before `sent` have gone out."""

    path: Path
    descriptor: int
    sent: int = 0

    def read(self) -> tuple[list[SpooledRecord], int]:
        """Return the next records and their end; one that a kill cut short is left out."""
        block = os.pread(self.descriptor, _BATCH, self.sent)
        while block and b"\n" not in block:
            more = os.pread(self.descriptor, _BATCH, self.sent + len(block))
            if not more:
                break
            block += more
        whole = block[: block.rfind(b"\n") + 1]
        return list(_records(whole)), self.sent + len(whole)


class Spool:
    """A queue of records in files of `folder`, which a thread sends by calling `send`.

    A record is a dictionary that JSON can hold. `send` raises `Refused` for records to drop; any
    other exception means to try again later. `say` gets one line when an outage begins and one when
    it ends.
    """

    def __init__(
        self,
        folder: Path,
        send: Callable[[Sequence[SpooledRecord]], None],
        *,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self._send, self._say = folder, send, say
        folder.mkdir(parents=True, exist_ok=True)
        self._own = _new(folder)
        self._written = 0
        self._changed = threading.Condition()
        self._closing = self._abandoned = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="spool")
        self._thread.start()

    def add(self, record: SpooledRecord) -> None:
        """Write a record to the file; the thread sends it as soon as the server takes it."""
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        with self._changed:
            before = os.fstat(self._own.descriptor).st_size
            try:
                if os.write(self._own.descriptor, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(self._own.descriptor, before)
                error.filename = str(self._own.path)
                raise
            self._written += len(line)
            self._changed.notify_all()

    def close(self, wait: float) -> int:
        """Send the remaining records, dead writers' too, for at most `wait` seconds.

        Returns how many are left.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait)
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
        return count_records(self.folder) if self._thread.is_alive() else 0

    def _work(self) -> None:
        for file in _left_behind(self.folder):
            self._drain(file)
        while True:
            self._drain(self._own)
            with self._changed:
                if self._own.sent == self._written:
                    if self._written:
                        os.ftruncate(self._own.descriptor, 0)
                        self._own.sent = self._written = 0
                    if self._closing or self._abandoned:
                        break
                    self._changed.wait()
            if self._abandoned:
                break
        if not self._abandoned:
            for file in _left_behind(self.folder):
                self._drain(file)
        if self._own.sent == self._written:
            self._own.path.unlink(missing_ok=True)
        os.close(self._own.descriptor)

    def _drain(self, file: _File) -> None:
        """Send a file's records; one that is not this writer's is deleted when it is empty."""
        failures = 0
        while not self._abandoned:
            records, end = file.read()
            if end == file.sent:
                break
            try:
                self._offer(records)
            except Exception as error:
                if failures == 0:
                    self._say(f"{error}; figures wait in {self.folder}")
                pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
                failures += 1
                self._pause(min(pause, 1) if self._closing else pause)
                continue
            if failures:
                self._say("MLflow answers again")
            failures, file.sent = 0, end
        if file is not self._own:
            if not self._abandoned:
                file.path.unlink(missing_ok=True)
            os.close(file.descriptor)

    def _pause(self, seconds: float) -> None:
        """Wait, though not longer than until someone wants to close."""
        with self._changed:
            closing = self._closing
            self._changed.wait_for(lambda: self._abandoned or self._closing != closing, seconds)

    def _offer(self, records: list[SpooledRecord]) -> None:
        """Send records together, and one by one where the server refuses them together."""
        try:
            self._send(records)
        except Refused as error:
            if len(records) == 1:
                self._say(f"{error}; left out: {json.dumps(records[0])[:200]}")
                return
            for record in records:
                self._offer([record])


def count_records(folder: Path) -> int:
    """Return how many records the spool files of `folder` hold; some may just have been sent."""
    count = 0
    for path in sorted(folder.glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            count += path.read_bytes().count(b"\n")
    return count


def _records(lines: bytes) -> Iterator[SpooledRecord]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError):  # bytes of a broken disk
            yield json.loads(line)


def _new(folder: Path) -> _File:
    """A file that no other process has taken for a dead writer's."""
    while True:
        path = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.jsonl"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o664)
        take_lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return _File(path, descriptor)
        os.close(descriptor)


def _left_behind(folder: Path) -> Iterator[_File]:
    """The files whose writers are dead, oldest first, each locked."""
    try:
        paths = sorted(folder.glob("*.jsonl"))
    except FileNotFoundError:  # the folder was removed
        return
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            continue
        if take_lock(descriptor, wait=False) and os.fstat(descriptor).st_nlink:
            yield _File(path, descriptor)
        else:
            os.close(descriptor)
