"""JSON records with declared types, and digests of values and files."""

import hashlib
import json
import math
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from elmo.errors import (
    Damaged,
    ElmoError,
    Mismatch,
    NotFound,
    altered_error,
    missing_error,
    suggest_path,
)

Record = TypeVar("Record")
Count = Annotated[int, Meta(ge=0, le=2**53)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# A file name in a manifest: no separator, so it cannot leave the folder, and no leading dot.
FileName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]*\Z", max_length=128)]
_REMEDY = "correct it, restore it or make it again"
_WORDS_BY_TYPE = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


class Header(msgspec.Struct):
    """The keys that every JSON file of this project has: its kind and version.

    The version is `schema` in manifests and `format` in other files. Neither can be renamed,
    because digests of the files include the keys.
    """

    kind: Any = "files without a kind"
    schema: Any = None
    format: Any = None

    def check_version(self, source: object, key: str, expected: int, *, remedy: str) -> None:
        """Raise `Mismatch` unless the file's version, the field `key`, is `expected`.

        `source` names the file in the message; `remedy` is the advice for an older file.
        """
        version = getattr(self, key)
        if version == expected:
            return
        is_newer = isinstance(version, int) and version > expected
        remedy = "a newer version wrote it: upgrade elmo-pipeline" if is_newer else remedy
        raise Mismatch(
            f"{source}: has {key} {str(version)[:20]}, but this version reads {expected}; {remedy}"
        )


JSON_LIMIT = 256 << 20  # bytes of a JSON file; larger ones are neither read nor written


def check_regular_file(path: Path) -> None:
    """Raise `ElmoError` unless a path is a regular file; reading a pipe might never end."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        link = f"; it is a link to {os.readlink(path)}" if path.is_symlink() else ""
        remedy = link or suggest_path(path) or "; check the name"
        raise NotFound(f"{path}: no such file{remedy}") from None
    if stat.S_ISDIR(mode):
        raise ElmoError(f"{path}: is a folder; pass a file")
    if not stat.S_ISREG(mode):
        raise ElmoError(f"{path}: is a pipe or a device; pass a file")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file's bytes, in hex; raise `ElmoError` for others."""
    check_regular_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(path: Path, expected: str) -> None:
    """Raise `ElmoError` if a file is missing or its SHA-256 is not the expected one."""
    if not path.is_file():
        raise missing_error(path)
    digest = sha256(path)
    if digest != expected:
        raise altered_error(path, f"sha256 {digest[:12]}…, its manifest says {expected[:12]}…")


def digest(value: Any) -> str:
    """Return the SHA-256, in hex, of a value's canonical JSON: with sorted keys, without spaces,
    and with null for numbers that are not finite."""
    text = json.dumps(_json_value(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def json_bytes(value: Any, *, source: str) -> bytes:
    """Return a value as the JSON bytes that `write_json` writes.

    Raises `ElmoError`, which names `source`, if they are too large for `read_record`.
    """
    text = json.dumps(_json_value(value), sort_keys=True, ensure_ascii=False, indent=1) + "\n"
    data = text.encode()
    check_json_size(len(data), source=source)
    return data


def check_json_size(size: int, *, source: str) -> None:
    """Raise `ElmoError`, which names `source`, if `size` is more than `JSON_LIMIT`."""
    if size > JSON_LIMIT:
        raise ElmoError(f"{source}: has {size:,} bytes, more than the limit of {JSON_LIMIT:,}")


def _json_value(value: Any) -> Any:
    """Return a copy of a JSON value with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of unknown structure; raise `ElmoError` if the file is missing or invalid.

    For files that this project writes, use `read_record`.
    """
    return read_record(path, dict[str, Any])


def read_record(path: Path, record_type: type[Record]) -> Record:
    """Read a JSON file as type `record_type`, a `msgspec.Struct` or any type that msgspec supports.

    Raises `ElmoError`, which names the file and the key or line, if it is missing, larger than
    `JSON_LIMIT`, not JSON, or of another type.
    """
    check_regular_file(path)
    check_json_size(path.stat().st_size, source=str(path))
    return parse_record(path.read_bytes(), record_type, source=str(path))


def describe_mismatch(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of keys to a value of the wrong type, empty for the whole value, and a
    description of the problem in plain words."""
    problem, _, key_path = str(error).replace("`key` in ", "").partition(" - at `$")
    key_path = key_path.removesuffix("`").removeprefix(".")
    types = re.fullmatch("Expected `(.+?)`(?:, got `(.+)`|(.*))", problem)
    if types is None:
        return key_path, problem.removeprefix("Object ")
    expected_type, value_type = (
        " or ".join(_WORDS_BY_TYPE.get(name, name) for name in (union or "").split(" | "))
        for union in types.group(1, 2)
    )
    limits = (types[3] or "").replace("matching regex", "of the form")
    return key_path, f"must be {expected_type}{limits or f', found {value_type}'}"


def parse_record(data: bytes, record_type: type[Record], *, source: str) -> Record:
    """Parse JSON bytes as type `record_type`; an `ElmoError` begins with `source`."""
    try:
        data.decode("utf-8")
        return msgspec.json.decode(data, type=record_type)
    except msgspec.ValidationError as error:
        key_path, problem = describe_mismatch(error)
        error_source = f"{source}: {key_path}" if key_path else source
        raise ElmoError(f"{error_source}: {problem}; {_REMEDY}") from None
    except RecursionError:
        raise Damaged(f"{source}: nested too deeply; {_REMEDY}") from None
    except UnicodeDecodeError as error:
        raise ElmoError(f"{source}: not UTF-8 (byte {error.start}); {_REMEDY}") from None
    except msgspec.DecodeError as error:
        line, reason = "", str(error)
        try:
            json.loads(data)
        except ValueError as json_error:
            if isinstance(json_error, json.JSONDecodeError):
                line, reason = f":{json_error.lineno}", json_error.msg
        raise Damaged(f"{source}{line}: not valid JSON ({reason}); {_REMEDY}") from None
