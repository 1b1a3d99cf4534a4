"""Check and read the texts of files of all formats."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from elmo.data.texts import check_no_printed_lists
from elmo.errors import ElmoError

from .accounting import Accounting
from .formats import FORMATS
from .input_files import InputFile, map_in_threads
from .reader import KeptColumns, ReadOptions, Records, load_reader
from .spans import file_as_span


def check_texts(
    inputs: Sequence[InputFile],
    column: str,
    list_source: str = "in params.yaml",
    keep: KeptColumns = (),
) -> None:
    """Check the heads of files; raise `ElmoError` if one is not text or lacks a column, or all are
    blank.

    `list_source` names the source of the list in messages, as in `find_inputs`.
    """
    files = [input_ for input_ in inputs if input_.bytes]
    options = ReadOptions(column, keep=keep)
    map_in_threads(lambda input_: load_reader(input_).check_head(input_, options), files)
    if not any(_has_text(input_, options) for input_ in files):
        has_column = FORMATS[files[0].format].documents == "line"
        problem = f"no text in column {column!r}" if has_column else "has no text"
        raise ElmoError(f"{files[0].url}: {problem}; name files with text {list_source}")


def read_texts(path: Path, column: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of one file with their numbers, from 1: the lines of plain text, or records.

    Raises `ElmoError` if the file is not text.
    """
    input_ = InputFile(path.name, str(path), path.stat().st_size, "0" * 64)
    reader, options, number = load_reader(input_), ReadOptions(column, size=1 << 20), 0
    if input_.bytes:
        reader.check_head(input_, options)
    for block, records in reader.blocks(file_as_span(input_, 0), options, Accounting()):
        texts = _split_block(block, records)
        if number == 0:
            check_no_printed_lists(texts, path)
        yield from enumerate(texts, number + 1)
        number += len(texts)


def _has_text(input_: InputFile, options: ReadOptions) -> bool:
    """Tell whether a file has text; raise `ElmoError` if its first texts are printed lists."""
    for block, records in load_reader(input_).blocks(
        file_as_span(input_, 0), options, Accounting()
    ):
        if block.strip():
            check_no_printed_lists(_split_block(block, records), input_.url)
            return True
    return False


def _split_block(block: bytes, records: Records | None) -> list[str]:
    """Return the texts of a block: its lines, or those of each record joined."""
    lines = block.decode("utf-8").split("\n")[:-1]
    if records is None:
        return lines
    starts = np.flatnonzero(np.diff(records.numbers, prepend=-1)).tolist()
    return ["\n".join(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]
