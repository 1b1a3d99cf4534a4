"""The exceptions for bad input, and a library's message inside one of ours."""

import errno
import os
import re


class ElmoError(ValueError):
    """Bad input or settings. The message is one line: what is wrong, where, and what to do."""


class NotFound(ElmoError):
    """A file, folder, model or package that was named is not there."""


class Damaged(ElmoError):
    """A file of ours is missing from its folder, truncated, altered or not to be parsed."""


class Mismatch(ElmoError):
    """Pieces that are each whole do not belong together: model and store, text and tokenizer."""


class BadSettings(ElmoError):
    """A setting that there is not, or out of its range."""


def missing(file: object) -> Damaged:
    """Say that a file is not there, though its manifest names it."""
    return Damaged(f"{file}: is missing, though its manifest names it; restore it or make it again")


def altered(file: object, found: str) -> Damaged:
    """Say that a file is not as it was written, by what was found."""
    return Damaged(f"{file}: truncated or altered ({found}); restore it or make it again")


def first_line(error: BaseException) -> str:
    """The first line of a library's message, with the next where it ends with a colon; without a
    message the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]


def reason_of(error: BaseException) -> str:
    """Return why the system refused, in its words, and what to do where a disk is full; of other
    errors the first line of the message.

    Arrow wraps the system's number in words of its own.
    """
    wrapped = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    number = int(wrapped[1]) if wrapped else getattr(error, "errno", None)
    own = os.strerror(int(wrapped[1])) if wrapped else getattr(error, "strerror", None)
    reason = own or first_line(error)
    full = number in (errno.ENOSPC, errno.EDQUOT)
    return reason + "; make room, and run the same command again" * full
