"""The one exception for bad input, and a library's message inside one of ours."""


class ElmoError(ValueError):
    """Bad input or settings. The message is one line: what is wrong, where, and what to do."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, with the next where it ends with a colon; without a
    message the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = lines or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])[:300]
