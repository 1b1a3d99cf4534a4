"""The protocol of the modules that read a format; each is imported when first needed."""

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
    """The records of a block: `numbers` has the number of each line's record, ascending.

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

    `column` is the column or field of the text, and `keep` names other columns to keep; plain text
    ignores both. `document_rule` says what a document is: "file", "line" (or a record), or "blank"
    (text between blank lines). A block has about `size` bytes of text.
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
        """Divide a file, number `file_number` of the corpus, into spans of about `size` bytes.

        With `document_rule` "blank" no document is divided.
        """

    def blocks(
        self, span: FileSpan, options: ReadOptions, accounting: Accounting
    ) -> Iterator[tuple[bytes, Records | None]]:
        """Yield a span's text in blocks, each with the number of every line's record.

        A block has whole lines of UTF-8 without a byte order mark, each ended by a newline. With
        `document_rule` "blank", it ends where a document ends, unless one document fills it.
        Records are numbered from 0 in the span; a format without records yields None. `accounting`
        counts all bytes read, bytes that are in no block, such as the names of JSON fields, and
        added newlines.
        """


def load_reader(input_: InputFile) -> Reader:
    """Import the module of a file's format, and return it."""
    return cast(Reader, import_module(f".{FORMATS[input_.format].module}", __package__))


def split_column(column: str, names: Container[str]) -> list[str]:
    """Return the names of the columns whose texts are joined, as in `title + body`.

    If `column` is itself one of the `names` of a file or record, it is that column alone. A column
    that is named twice is joined once, so no text is longer than its record.
    """
    return [column] if column in names else [*dict.fromkeys(column.split(" + "))]


def join_texts(texts: Iterable[str | None]) -> str:
    """Join the texts of a record's columns by newlines; None is skipped."""
    return "\n".join(filter(None, texts))


def join_records(
    texts: list[bytes], first_number: int, kept_json: list[str] | None = None
) -> tuple[bytes, Records]:
    """Join the texts of records into lines; return the lines and their records.

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
