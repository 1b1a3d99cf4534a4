"""The CSV and TSV formats: the text is in one column, given by its name or its number."""

import codecs
from collections.abc import Iterator
from itertools import chain

from elmo.data.tables import read_table
from elmo.errors import ElmoError

from .accounting import Accounting
from .input_files import InputFile
from .reader import ReadOptions, Records, encode_kept, join_records, join_texts, split_column
from .spans import FileSpan, file_as_span
from .utf8_lines import abbreviate_names, check_utf8, raw_blocks

_DELIMITERS = {"csv": ",", "tsv": "\t"}
_REMEDIES = {",": "rename the file to .csv", "\t": "rename the file to .tsv"}
_REWRITE_REMEDY = (
    'write commas: python -c "import csv, sys; csv.writer(sys.stdout).writerows('
    "csv.reader(sys.stdin, delimiter='{}'))\" < old.csv > new.csv"
)


def check_head(input_: InputFile, options: ReadOptions) -> None:
    """Raise `ElmoError` for a file whose head is not a table or does not have the column."""
    next(blocks(file_as_span(input_, 0), options, Accounting()), None)


def spans(input_: InputFile, file_number: int, size: int, document_rule: str) -> list[FileSpan]:
    """Return the whole file as one span, because a line end may be inside a field.

    `file_number` is its number in the corpus. `size` and `document_rule` have no effect here.
    """
    return [file_as_span(input_, file_number)]


def blocks(
    span: FileSpan, options: ReadOptions, accounting: Accounting
) -> Iterator[tuple[bytes, Records]]:
    """Yield the texts of a file's records in blocks, as `Reader.blocks` says.

    `options.column` is the name of a column in the header or, without a header, its number from 1.
    """
    lines, keep = _TableLines(span, options.size), options.keep
    records = read_table(lines, delimiter=_DELIMITERS[span.input.format], source=span.input.url)
    first_row = next(records, (0, []))
    header = first_row[1]
    names = split_column(options.column, header)
    if all(name.isascii() and name.isdecimal() and name not in header for name in names):
        records = chain([first_row], records)  # there is no header
    column_indices = (_column_index(span.input, header, name) for name in names if header)
    indices = [*dict.fromkeys(column_indices)]  # a column may be named by its number too
    kept_indices = [_column_index(span.input, header, name, "keep") for name in keep if header]
    texts: list[bytes] = []
    records_json: list[str] = []
    first_record, block_bytes = 0, 0
    for _, fields in records:
        texts.append(join_texts(fields[index] for index in indices).encode())
        if keep:
            records_json.append(encode_kept(keep, (fields[index] for index in kept_indices)))
        block_bytes += len(texts[-1])
        if block_bytes >= options.size:
            lines.account(texts, accounting)
            yield join_records(texts, first_record, records_json)
            first_record, block_bytes, texts, records_json = first_record + len(texts), 0, [], []
    lines.account(texts, accounting)
    if texts:
        yield join_records(texts, first_record, records_json)


class _TableLines:
    """The lines of a file with their ends; counts their bytes since the last call of `account`."""

    def __init__(self, span: FileSpan, size: int) -> None:
        self._span, self._size = span, size
        self._bytes = self._bom_bytes = 0
        self._has_partial_line = False  # whether the last line has no end

    def __iter__(self) -> Iterator[str]:
        for block, offset in raw_blocks(self._span, self._size, "line"):
            check_utf8(self._span, block, offset)
            if offset == 0 and block.startswith(codecs.BOM_UTF8):
                block = block[len(codecs.BOM_UTF8) :]
                self._bom_bytes = len(codecs.BOM_UTF8)
            whole_lines, _, partial_line = block.rpartition(b"\n")
            lines = [line + b"\n" for line in whole_lines.split(b"\n")] if b"\n" in block else []
            for line in [*lines, partial_line] if partial_line else lines:
                self._bytes += len(line)
                self._has_partial_line = line is partial_line
                yield line.decode("utf-8")

    def account(self, texts: list[bytes], accounting: Accounting) -> None:
        """Account for the bytes since the last call; `texts` are the texts in them."""
        added_newlines = int(self._has_partial_line and bool(texts))
        accounting.bytes += self._bytes + self._bom_bytes
        accounting.mark += self._bom_bytes
        accounting.added_newlines += added_newlines
        accounting.fields += self._bytes + added_newlines - sum(map(len, texts)) - len(texts)
        self._bytes = self._bom_bytes = 0


def _column_index(input_: InputFile, names: list[str], column: str, setting: str = "column") -> int:
    """Return the index of a column that a header names, or of the column with this number."""
    if names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise ElmoError(f"{input_.url}:1: the header names {column!r} twice; rename one")
    if column.isascii() and column.isdecimal() and 0 < int(column) <= len(names):
        return int(column) - 1
    file_delimiter = _DELIMITERS[input_.format]
    header = file_delimiter.join(names)
    for delimiter in ";|\t,".replace(file_delimiter, ""):
        if column in header.split(delimiter) or (len(names) == 1 and delimiter in header):
            raise ElmoError(
                f"{input_.url}:1: the columns are separated by {delimiter!r}: {header[:60]!r}; "
                f"{_REMEDIES.get(delimiter) or _REWRITE_REMEDY.format(delimiter)}"
            )
    raise ElmoError(
        f"{input_.url}:1: the header has no column {column!r}, found {abbreviate_names(names)}; "
        f"set corpus.{setting} to one of these, or to the column's number if there is no header"
    )
