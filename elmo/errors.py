"""The exceptions for bad input, messages that several modules share (a missing or altered file),
and helpers that quote a library's error in one line."""

import difflib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

_REMEDY_BY_ERRNO = {  # for errors of the operating system
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room, and run the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "make it writable, or name another"),
    **dict.fromkeys((errno.EEXIST, errno.ELOOP, errno.ENOTDIR, errno.EISDIR), "name another"),
    errno.ENAMETOOLONG: "choose a shorter name",
}


class ElmoError(ValueError):
    """Bad input or settings; the one-line message says what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(re.sub(r"\n\s*", " ", message))  # a quoted array has several lines


class NotFound(ElmoError):
    """A requested file, folder, model or package does not exist."""


class Damaged(ElmoError):
    """A file of this project is missing from its folder, truncated, altered or unreadable."""


class Mismatch(ElmoError):
    """Two valid inputs do not belong together, such as a store and a model that did not make it."""


class BadSettings(ElmoError):
    """A setting is unknown or out of its range."""


def missing_error(file: object) -> Damaged:
    """Return the exception for a file that its manifest names but that does not exist."""
    return Damaged(f"{file}: is missing, though its manifest names it; restore it or make it again")


def altered_error(file: object, reason: str) -> Damaged:
    """Return the exception for a truncated or altered file; `reason` says how it differs."""
    return Damaged(f"{file}: truncated or altered ({reason}); restore it or make it again")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about a name that was not found: a question with the most similar
    one of `names`; empty if none is similar."""
    matches = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def not_utf8_error(source: object, line_number: int, line: bytes, start: int) -> ElmoError:
    """Return the exception for a line that is not UTF-8. It is line `line_number` of `source` (from
    1) and has the bytes `line`; byte `start` (from 0) is wrong."""
    return ElmoError(
        f"{source}:{line_number}: byte {start + 1} of the line (0x{line[start]:02x}) is not UTF-8; "
        "save the file as UTF-8 (for example: iconv -f LATIN1 -t UTF-8)"
    )


def suggest_path(path: Path, *, only_folders: bool = False) -> str:
    """Return the end of a message that `path` is missing: a question with the most similar path
    beside it, or with `only_folders` the most similar folder; empty if none is similar."""
    try:
        names = [item.name for item in path.parent.iterdir() if not only_folders or item.is_dir()]
    except OSError:
        return ""
    names = [name for name in names if name != path.name] if len(names) < 10_000 else []
    matches = difflib.get_close_matches(path.name, names, 1, 0.75)  # strict: many share an ending
    return suggest_name(str(path), [str(path.with_name(name)) for name in matches])


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if it has none.

    If that line ends with a colon, the next line is appended.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]


def reason_of(error: BaseException, remedy: str = "") -> str:
    """Return the reason for an error in one line: for an error of the operating system, even one
    wrapped by Arrow, the system's text; for others, the first line of the message. Advice is
    appended: for some errors, such as a full disk, it is specific, otherwise `remedy`."""
    match = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    error_number = int(match[1]) if match else getattr(error, "errno", None)
    system_reason = os.strerror(int(match[1])) if match else getattr(error, "strerror", None)
    reason = system_reason or first_line(error)
    return "; ".join(filter(None, (reason, _REMEDY_BY_ERRNO.get(error_number or 0, remedy))))
