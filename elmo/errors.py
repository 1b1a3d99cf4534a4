"""The exceptions for bad input, and a library's message inside one of ours."""

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


def first_line(error: BaseException) -> str:
    """The first line of a library's message, with the next where it ends with a colon; without a
    message the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]


def reason_of(error: BaseException) -> str:
    """Return why the system refused, in its words, or the first line of a library's message.

    Arrow wraps the system's number in words of its own.
    """
    number = re.search(r"\[errno (\d+)\]", str(error), re.IGNORECASE)
    if number and (known := os.strerror(int(number[1]))):
        return known
    return getattr(error, "strerror", None) or first_line(error)
