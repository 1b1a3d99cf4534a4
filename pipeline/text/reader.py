"""The protocol of a format's module, which is imported only when a file of that format is read."""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from .accounting import Accounting
from .formats import FORMATS
from .input_files import InputFile
from .spans import FileSpan

Records = npt.NDArray[np.int64]  # the number of the record that each line is of


class Reader(Protocol):
    """The functions that the module of a format must have.

    A *span* is a part of a file that one process reads. `size` is about how many bytes of text it
    or a block has; `column` is the column or field that holds the text; `documents` says what a
    document is in the file: "file", "line" (of records: a record) or "blank" (what blank lines
    divide).
    """

    def check_head(self, input_: InputFile, column: str) -> None:
        """Read the head of a file; raise `ElmoError` if it is binary or lacks the column."""

    def spans(self, input_: InputFile, index: int, size: int, documents: str) -> list[FileSpan]:
        """Divide a file, number `index` of the corpus, into spans of about `size` bytes of text.

        With `documents` "blank" no document is divided.
        """

    def blocks(
        self, span: FileSpan, size: int, column: str, documents: str, accounting: Accounting
    ) -> Iterator[tuple[bytes, Records | None]]:
        """Yield a span's text in blocks, each with the number of every line's record.

        A block is whole lines of UTF-8, each ended by a newline, about `size` bytes. Instead of
        numbers there is None in a format without records. All bytes that are read, and those that
        are in no block, are counted in `accounting`.
        """


def load_reader(input_: InputFile) -> Reader:
    """Import the module of a file's format, and return it."""
    return cast(Reader, import_module(f".{FORMATS[input_.format].module}", __package__))


def join_records(texts: list[bytes], first: int) -> tuple[bytes, Records]:
    """Join the texts of records into lines; return these and the number of each line's record.

    The number of the first record is `first`.
    """
    lines = [text.count(b"\n") + 1 for text in texts]
    records = np.repeat(np.arange(first, first + len(texts), dtype=np.int64), lines)
    return b"".join(text + b"\n" for text in texts), records
