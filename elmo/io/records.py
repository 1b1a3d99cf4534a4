"""Typed JSON records, and digests."""

import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from elmo.errors import Damaged, ElmoError, NotFound, altered, missing

Record = TypeVar("Record")


Count = Annotated[int, Meta(ge=0, le=2**53)]


Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]


# A file beside its manifest: no separator, so it can't leave the folder, and no leading dot.
FileName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]*\Z", max_length=128)]


class ManifestKind(msgspec.Struct):
    """The kind of thing that a manifest says it describes."""

    kind: str = "files without a kind"


JSON_LIMIT = 64 << 20  # bytes of a JSON file that is read at all, and so written


def check_readable(path: Path) -> None:
    """Refuse to read what is no file: a pipe, for one, may never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        link = f"; it is a link to {os.readlink(path)}" if path.is_symlink() else ""
        raise NotFound(f"{path}: no such file{link}") from None
    if stat.S_ISDIR(mode):
        raise ElmoError(f"{path}: is a folder; a file is needed")
    if not stat.S_ISREG(mode):
        raise ElmoError(f"{path}: is a pipe or a device; a file is needed")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex; `ElmoError` where it is no file."""
    check_readable(path)
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise `ElmoError` naming the file where its bytes are not the ones its manifest recorded."""
    if not path.is_file():
        raise missing(path)
    actual = sha256(path)
    if actual != expected:
        raise altered(path, f"sha256 {actual[:12]}…, its manifest says {expected[:12]}…")


def digest(value: Any) -> str:
    """The SHA-256, in hex, of the canonical JSON of a value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def json_bytes(value: Any, *, source: str) -> bytes:
    """Return what `write_json` writes; `ElmoError` where nobody could read it again."""
    text = json.dumps(_finite(value), sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    data = text.encode()
    check_json_size(len(data), source=source)
    return data


def check_json_size(size: int, *, source: str, limit: int | None = None) -> None:
    """Refuse a JSON file of more bytes than `limit`, by default those that are read."""
    if size > (limit or JSON_LIMIT):
        raise ElmoError(
            f"{source}: takes {size:,} bytes; such a file has at most {limit or JSON_LIMIT:,}"
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of unknown shape; `ElmoError` where the file is absent or no such thing.

    What this project writes and reads has a record type: use `read_record`.
    """
    return read_record(path, dict[str, Any])


def read_record(path: Path, kind: type[Record], *, limit: int | None = None) -> Record:
    """Read a JSON file as `kind`, a `msgspec.Struct` or any type that msgspec knows.

    `ElmoError` names the file, and the key or line, where it is absent, larger than `limit` (by
    default `JSON_LIMIT`), not JSON or not of that type.
    """
    check_readable(path)
    check_json_size(path.stat().st_size, source=str(path), limit=limit)
    return parse_record(path.read_bytes(), kind, source=str(path))


def parse_record(data: bytes, kind: type[Record], *, source: str) -> Record:
    """JSON bytes as `kind`; `source` opens the message of an `ElmoError`."""
    try:
        data.decode("utf-8")
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`key` in ", "").partition(" - at `$")
        where = where.removesuffix("`").removeprefix(".")
        raise ElmoError(f"{source}: {where + ': ' if where else ''}{what}") from None
    except UnicodeDecodeError as error:
        raise ElmoError(f"{source}: not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise Damaged(f"{source}: nested too deeply to be one of this project's files") from None
    except msgspec.DecodeError as error:
        try:
            json.loads(data)  # names the line
        except json.JSONDecodeError as named:
            raise Damaged(f"{source}:{named.lineno}: not valid JSON ({named.msg})") from None
        except ValueError:
            pass
        raise Damaged(f"{source}: not valid JSON ({error})") from None
