"""The formats of input files, one record each, and how a file may be compressed.

A new format is a module beside this one and its record in `FORMATS`. Light: the module is imported
when a file of that format is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .accounting import Accounting
    from .inputs import Input
    from .spans import FileSpan

Records = npt.NDArray[np.int64]  # the number of the record that each line is of
# By the ending, as Arrow names them.
COMPRESSIONS: Mapping[str, str] = {".gz": "gzip", ".zst": "zstd", ".xz": "xz"}


class FormatModule(Protocol):
    """The functions of a format's module."""

    def check(self, input_: "Input", column: str) -> None:
        """Look at the head of a file: `ElmoError` where it is binary or lacks the column."""

    def spans(self, input_: "Input", index: int, size: int, documents: str) -> "list[FileSpan]":
        """Divide a file, the input `index` of the corpus, where it may be cut: in pieces of about
        `size` bytes of text."""

    def blocks(
        self, span: "FileSpan", size: int, column: str, documents: str, accounting: "Accounting"
    ) -> Iterator[tuple[bytes, Records | None]]:
        """Yield a span's text, about `size` bytes at a time, as whole lines of UTF-8, each ended by
        a newline; `accounting` gains each byte of the file that is not in them."""


@dataclass(frozen=True)
class Format:
    """A format, chosen by the ending of a file's name.

    `documents` is what `tokenize.documents: auto` means in it. A `packed` file has several bytes of
    text for one of its own.
    """

    endings: tuple[str, ...]
    module: str
    documents: Literal["blank", "line"]
    packed: bool = False

    def load(self) -> FormatModule:
        """Import its module."""
        return cast(FormatModule, import_module(f".{self.module}", __package__))


FORMATS: Mapping[str, Format] = {
    "text": Format((".txt", ".text", ".md", ".rst"), "plain_text", "blank"),
    "jsonl": Format((".jsonl", ".ndjson"), "json_lines", "line"),
    "csv": Format((".csv",), "tables", "line"),
    "tsv": Format((".tsv",), "tables", "line"),
    "parquet": Format((".parquet",), "parquet", "line", packed=True),
}
BY_ENDING = {ending: name for name, format_ in FORMATS.items() for ending in format_.endings}
