"""The formats of input files, with a record of each, and how a file may be compressed.

A new format is a module `format_NAME.py` beside this one and a record in `FORMATS`. A format's own
module is imported only when a file of that format is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .accounting import Accounting
    from .input_files import InputFile
    from .spans import FileSpan

Records = npt.NDArray[np.int64]  # the number of the record that each line is of
# Arrow's name of each compression, by the ending of a file's name.
COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}


class FormatModule(Protocol):
    """The functions that the module of a format must have.

    A *span* is a part of a file that one process reads. `size` is about how many bytes of text it
    or a block has; `column` is the column or field that holds the text; `documents` says what a
    document is in the file: "file", "line" (of records: a record) or "blank" (what blank lines
    divide).
    """

    def check_head(self, input_: "InputFile", column: str) -> None:
        """Read the head of a file; raise `ElmoError` if it is binary or lacks the column."""

    def spans(self, input_: "InputFile", index: int, size: int, documents: str) -> "list[FileSpan]":
        """Divide a file, number `index` of the corpus, into spans of about `size` bytes of text.

        With `documents` "blank" no document is divided.
        """

    def blocks(
        self, span: "FileSpan", size: int, column: str, documents: str, accounting: "Accounting"
    ) -> Iterator[tuple[bytes, Records | None]]:
        """Yield a span's text in blocks, each with the number of every line's record.

        A block is whole lines of UTF-8, each ended by a newline, about `size` bytes. Instead of
        numbers there is None in a format without records. All bytes that are read, and those that
        are in no block, are counted in `accounting`.
        """


@dataclass(frozen=True)
class Format:
    """A file format, chosen by the ending of a file's name, which is one of `endings`.

    `module` is the name of its module in `pipeline.text`, `documents` what `tokenize.documents:
    auto` means in it. A `packed` file is compressed inside: it holds several bytes of text for one
    of its own.
    """

    endings: tuple[str, ...]
    module: str
    documents: Literal["blank", "line"]
    packed: bool = False

    def load(self) -> FormatModule:
        """Import the module of the format, and return it."""
        return cast(FormatModule, import_module(f".{self.module}", __package__))


FORMATS: Mapping[str, Format] = {
    "text": Format((".txt", ".text", ".md", ".rst"), "format_plain_text", "blank"),
    "jsonl": Format((".jsonl", ".ndjson"), "format_json_lines", "line"),
    "csv": Format((".csv",), "format_csv", "line"),
    "tsv": Format((".tsv",), "format_csv", "line"),
    "parquet": Format((".parquet",), "format_parquet", "line", packed=True),
}
BY_ENDING = {ending: name for name, format_ in FORMATS.items() for ending in format_.endings}
