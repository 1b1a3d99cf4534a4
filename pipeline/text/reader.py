"""The protocol of a format's module, which is imported only when a file of that format is read."""

import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from elmo.data.arrays import Int64s

from .accounting import Accounting
from .formats import FORMATS
from .input_files import InputFile
from .spans import FileSpan

KeptColumns = tuple[str, ...]


class Records(NamedTuple):
    """The records of a block's lines: the `numbers` of each line's record, ascending.

    `kept_json` has the kept columns of each record as JSON; it is empty if none are kept.
    """

    numbers: Int64s
    kept_json: list[str]

    def columns_of_lines(self) -> pa.StringArray:
        """Return the kept columns of each line's record."""
        return pa.array(self.kept_json, pa.string()).take(pa.array(self.numbers - self.numbers[0]))


@dataclass(frozen=True)
class ReadOptions:
    """The options of reading a file.

    `column` is the column or field of the text, and `keep` names others, which are kept beside it;
    plain text ignores both. `document_rule` says what a document is: "file", "line" (or a record),
    or "blank" (text between blank lines). `size` is about the number of bytes of text in a block.
    """

    column: str
    document_rule: str = "line"
    size: int = 1 << 16
    keep: KeptColumns = ()


class Reader(Protocol):
    """The functions that the module of a format must have.

    A *span* is a part of a file that one process reads.
    """

    def check_head(self, input_: InputFile, options: ReadOptions) -> None:
        """Read the head of a file; raise `ElmoError` if it is binary or lacks a column."""

    def spans(
        self, input_: InputFile, file_number: int, size: int, document_rule: str
    ) -> list[FileSpan]:
        """Divide a file into spans of about `size` bytes; `file_number` is its place in the corpus.

        With `document_rule` "blank" no document is divided.
        """

    def blocks(
        self, span: FileSpan, options: ReadOptions, accounting: Accounting
    ) -> Iterator[tuple[bytes, Records | None]]:
        """Yield a span's text in blocks, each with the number of every line's record.

        A block is whole lines of UTF-8 without a byte order mark, each ended by a newline; with
        `document_rule` "blank" it ends where a document ends, unless one document fills it. Records
        count from 0 in the span; a format without records yields None. Counted in `accounting` are
        all bytes that are read, those that are in no block, such as the names of JSON fields, and
        newlines that are added.
        """


def load_reader(input_: InputFile) -> Reader:
    """Import the module of a file's format, and return it."""
    return cast(Reader, import_module(f".{FORMATS[input_.format].module}", __package__))


def split_column(column: str, names: Container[str]) -> list[str]:
    """Return the names of the columns whose texts are joined, as in `title + body`.

    If one of the `names` of a file or record is the same, it is that column alone. A column that is
    named twice is joined once, so no text is longer than its record.
    """
    return [column] if column in names else [*dict.fromkeys(column.split(" + "))]


def join_texts(texts: Iterable[str | None]) -> str:
    """Join the texts of the columns of a record, each on lines of its own; None is no text."""
    return "\n".join(filter(None, texts))


def join_records(
    texts: list[bytes], first_number: int, kept_json: list[str] | None = None
) -> tuple[bytes, Records]:
    """Join the texts of records into lines; return these and their records.

    The first record has the number `first_number`; `kept_json` has the kept columns of each.
    """
    line_counts = [text.count(b"\n") + 1 for text in texts]
    record_numbers = np.repeat(
        np.arange(first_number, first_number + len(texts), dtype=np.int64), line_counts
    )
    return b"".join(text + b"\n" for text in texts), Records(record_numbers, kept_json or [])


def encode_kept(keep: KeptColumns, values: Iterable[Any]) -> str:
    """Return the values of the columns `keep` of one record as JSON."""
    columns = dict(zip(keep, values, strict=True))
    return json.dumps(columns, ensure_ascii=False, default=str)
