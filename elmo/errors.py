"""The one exception for bad input, and a library's message inside one of ours."""


class ElmoError(ValueError):
    """Bad input or settings. The message is one line: what is wrong, where, and what to do."""


def first_line(error: BaseException) -> str:
    """The first line of a library's message that is not blank, or else the name of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
