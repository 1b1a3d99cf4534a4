"""The JSON lines format: the text is one field of each record."""

import json
from collections.abc import Iterator

from elmo.errors import ElmoError

from . import format_plain_text
from .accounting import Accounting
from .input_files import InputFile
from .reader import Records, join_records
from .spans import FileSpan, line_spans
from .utf8_lines import abbreviate_names, check_utf8, line_number, raw_blocks


def check_head(input_: InputFile, column: str) -> None:
    """Raise `ElmoError` for a binary file, or one whose first records lack the field `column`."""
    format_plain_text.check_head(input_, column)
    span = FileSpan(input_, 0, 0, input_.bytes if input_.compression is None else -1, 0)
    for _ in blocks(span, 1 << 16, column, "line", Accounting()):
        break


def spans(input_: InputFile, index: int, size: int, documents: str) -> list[FileSpan]:
    """Divide a file at line ends into spans of about `size` bytes.

    `index` is the file's number in the corpus. With `documents` "blank", where blank lines in the
    text divide documents, the file is one span.
    """
    return line_spans(input_, index, input_.bytes if documents == "blank" else size, documents)


def blocks(
    span: FileSpan, size: int, column: str, documents: str, accounting: Accounting
) -> Iterator[tuple[bytes, Records]]:
    """Yield the texts of a span's JSON lines in blocks, with the number of every line's record.

    The texts are those of the field `column`; one may have several lines, and that of a blank line
    or null is blank. A block holds the texts of about `size` bytes of the file as UTF-8, each line
    ended by a newline; records count from 0. All bytes that are read, and those that are no text,
    are counted in `accounting`. `documents` has no effect here.
    """
    first = 0
    for raw, offset in raw_blocks(span, size, "line"):
        check_utf8(span, raw, offset)
        lines = raw.removesuffix(b"\n").split(b"\n")
        texts = []
        seen = offset
        for line in lines:
            try:
                texts.append(_field(line, column))
            except ValueError as error:
                where = f"{span.input.url}:{line_number(span, seen)}"
                raise ElmoError(f"{where}: {error}") from None
            seen += len(line) + 1
        accounting.bytes += len(raw)
        accounting.added += not raw.endswith(b"\n")
        accounting.fields += sum(map(len, lines)) - sum(map(len, texts))
        yield join_records(texts, first)
        first += len(texts)


def _field(line: bytes, column: str) -> bytes:
    """The text of one JSON line; a blank line or null is an empty text, and keeps its number."""
    if not line.strip():
        return b"" if not line else line
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict) or column not in record:
        fields = (
            f", found {abbreviate_names(record)}" if isinstance(record, dict) and record else ""
        )
        raise ValueError(f"no field {column!r} in this record{fields}; set corpus.column")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"field {column!r} must be a string, found {type(text).__name__}")
    try:
        return (text or "").encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"field {column!r} holds half a surrogate pair, no character") from None
