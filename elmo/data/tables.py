"""Records of CSV and TSV.

CSV is RFC 4180's: fields between commas, one with a comma, a line end or a quotation mark between
quotation marks, where a mark is written twice. TSV has no quoting: a tab or a line end always ends
a field, and a quotation mark is a character.
"""

import csv
from collections.abc import Iterable, Iterator

from elmo.errors import ElmoError
from elmo.settings import LONGEST_LINE


def rows(
    lines: Iterable[str], *, delimiter: str, source: object
) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's fields, with the number of the line that it begins at.

    `lines` end as those of the file do. Blank lines between records are passed over. `ElmoError`
    names the line of a record that is not well formed, or has other fields than the first.
    """
    begin, width = 1, 0
    for end, fields in _records(lines, delimiter, source):
        if fields:
            width = width or len(fields)
            if len(fields) != width:
                raise ElmoError(
                    f"{source}:{begin}: {len(fields)} fields, {width} in the header; put a field "
                    "that holds the delimiter between quotation marks"
                    if delimiter == ","
                    else f"{source}:{begin}: {len(fields)} fields, {width} in the header"
                )
            yield begin, fields
        begin = end + 1


def _records(
    lines: Iterable[str], delimiter: str, source: object
) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each record, none for a blank line, and the number of its last line."""
    if delimiter == "\t":
        for number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            yield number, text.split("\t") if text else []
        return
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    begin = 1
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise ElmoError(f"{source}:{begin}: {_said(error)}") from None
        if fields is None:
            return
        yield reader.line_num, fields
        begin = reader.line_num + 1


def _said(error: csv.Error) -> str:
    text = str(error)
    if "unexpected end" in text or "field larger" in text:
        return (
            "a quotation mark that begins a field here is never closed; write marks inside a text "
            "twice, and the text between marks"
        )
    if "expected after" in text:
        return "text follows a closing quotation mark; write marks inside a text twice"
    return f"is not CSV ({text})"
