"""Files and folders written whole or not at all, and the digests that describe them."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder beside `out` that becomes `out` on success and vanishes on any failure.

    An existing `out` stays until the new folder is complete, then is replaced.
    """
    beside = _beside(out)
    beside.mkdir()
    try:
        yield beside
        old = _beside(out)
        if out.exists():
            os.rename(out, old)
        os.rename(beside, out)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        _say_where(error, out)
        raise


@contextmanager
def new_file(out: Path, *, beside: Path | None = None) -> Iterator[Path]:
    """Yield a path in the folder `beside` (that of `out`); it becomes `out` on success and vanishes
    on any failure."""
    new = _beside((beside or out.parent) / out.name)
    try:
        yield new
        os.replace(new, out)
    except BaseException as error:
        new.unlink(missing_ok=True)
        _say_where(error, out)
        raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise `ElmoError` naming the file where its bytes are not the ones its manifest recorded."""
    if not path.is_file():
        raise ElmoError(f"{path}: is missing, though its manifest names it; make the folder again")
    found = sha256(path)
    if found != expected:
        raise ElmoError(
            f"{path}: truncated or altered (sha256 {found[:12]}…, its manifest says "
            f"{expected[:12]}…); restore it or make the folder again"
        )


def digest(value: Any) -> str:
    """The SHA-256, in hex, of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON with sorted keys: the same value always gives the same bytes."""
    with new_file(path) as beside:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)
        beside.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; `ElmoError` where the file is absent, not JSON or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ElmoError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ElmoError(f"{path}: not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ElmoError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise ElmoError(f"{path}: must hold a JSON object, found a {type(value).__name__}")
    return value


def _say_where(error: BaseException, out: Path) -> None:
    """Name what was being written where the system did not, as when a disk is full."""
    if isinstance(error, OSError) and error.filename is None:
        raise ElmoError(f"{out}: {error.strerror or error}") from error


def _beside(out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    return out.parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
