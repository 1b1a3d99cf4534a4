"""The one exception for bad input."""


class ElmoError(ValueError):
    """Bad input or settings. The message is one line: what is wrong, where, and what to do."""
