"""The exceptions for bad input, and helpers that quote a library's error in one line."""

import errno
import os
import re


class ElmoError(ValueError):
    """Bad input or settings; the one-line message says what is wrong, where, and what to do."""


class NotFound(ElmoError):
    """A file, folder, model or package that was asked for does not exist."""


class Damaged(ElmoError):
    """A file of this project is missing from its folder, truncated, altered or unreadable."""


class Mismatch(ElmoError):
    """Two valid inputs do not belong together, such as a store and another model."""


class BadSettings(ElmoError):
    """A setting is unknown or out of its range."""


def missing_error(file: object) -> Damaged:
    """Return the exception for a file that its manifest names but that does not exist."""
    return Damaged(f"{file}: is missing, though its manifest names it; restore it or make it again")


def altered_error(file: object, found: str) -> Damaged:
    """Return the exception for a truncated or altered file; `found` says how it differs."""
    return Damaged(f"{file}: truncated or altered ({found}); restore it or make it again")


def other_format(
    source: object, found: object, wanted: int, *, name: str = "format", again: str
) -> Mismatch:
    """Return the exception for a file in a format that this version does not read.

    `again` is the advice for an older file; a newer one needs a newer version of this package.
    """
    newer = isinstance(found, int) and found > wanted
    remedy = "a newer version wrote it: upgrade elmo-pipeline" if newer else again
    return Mismatch(
        f"{source}: has {name} {str(found)[:20]}, this version reads {wanted}; {remedy}"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if it has none.

    If that line ends with a colon, the next line is appended.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]


def reason_of(error: BaseException) -> str:
    """Return the operating system's reason for an error, with advice if a disk is full.

    For other errors, return the first line of the message. Arrow's wrapped system errors are
    unwrapped.
    """
    wrapped = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    number = int(wrapped[1]) if wrapped else getattr(error, "errno", None)
    own = os.strerror(int(wrapped[1])) if wrapped else getattr(error, "strerror", None)
    reason = own or first_line(error)
    full = number in (errno.ENOSPC, errno.EDQUOT)
    return reason + "; make room, and run the same command again" * full
