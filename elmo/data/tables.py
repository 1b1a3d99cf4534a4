"""Readers of CSV and TSV records.

CSV follows RFC 4180: fields are separated by commas, and a field that contains a comma, a line end
or a quotation mark is quoted, with each inner mark doubled. TSV has no quoting: a tab or a line end
always ends a field, and a quotation mark is an ordinary character.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence

from elmo.errors import ElmoError
from elmo.settings import MAX_LINE_BYTES


def read_table(
    lines: Iterable[str], *, delimiter: str, source: object
) -> Iterator[tuple[int, list[str]]]:
    """Parse the lines of a CSV (`delimiter` ",") or TSV (a tab) file; yield the number of each
    record's first line, from 1, and its fields.

    `lines` keep their line ends; blank lines between records are skipped. Raises `ElmoError`, in
    which `source` names the file, for a malformed record, or one with fewer or more fields.
    """
    first_line, field_count = 1, 0
    for last_line, fields in _parse_records(lines, delimiter, source):
        if fields:
            field_count = field_count or len(fields)
            if len(fields) != field_count:
                remedy = "quote each field that contains a comma"
                raise ElmoError(
                    f"{source}:{first_line}: {len(fields)} fields, {field_count} in the header; "
                    f"{remedy if delimiter == ',' else 'correct the line'}"
                )
            yield first_line, fields
        first_line = last_line + 1


def explain_wrong_delimiter(header: Sequence[str]) -> str:
    """Return an explanation if a wrong character seems to separate the columns of a table's header;
    empty if none does."""
    mark = next((mark for mark in ",;\t|" if mark in header[0]), None) if len(header) == 1 else None
    if mark is None:
        return ""
    return f"its fields are separated by {mark!r}; save the table as CSV (commas) or TSV (tabs)"


def _parse_records(
    lines: Iterable[str], delimiter: str, source: object
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's last line number and its fields; a blank line has no fields."""
    if delimiter == "\t":
        for line_number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            yield line_number, text.split("\t") if text else []
        return
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    first_line = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ElmoError(f"{source}:{first_line}: {_explain_error(error)}") from None
        if fields is None:
            return
        yield reader.line_num, fields
        first_line = reader.line_num + 1


def _explain_error(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end" in text or "field larger" in text:
        return (
            "a quotation mark opens a field here and is never closed; close it, or double each "
            "quotation mark inside a quoted field"
        )
    if "expected after" in text:
        return "text follows a closing quotation mark; double each quotation mark inside a field"
    if "new-line character" in text:
        return r"has a carriage return within a line; convert the file: tr '\r' '\n'"
    return f"is not CSV ({text})"
