"""The JSON lines format: the text is one field of each record, or of a record within it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from elmo.errors import ElmoError

from .accounting import Accounting
from .input_files import InputFile, read_head
from .reader import (
    KeptColumns,
    ReadOptions,
    Records,
    encode_kept,
    join_records,
    join_texts,
    split_column,
)
from .spans import FileSpan
from .spans import line_spans as spans
from .utf8_lines import abbreviate_names, check_utf8, line_number, raw_blocks

__all__ = ["blocks", "check_head", "spans"]

_REMEDY = "correct the line"


def check_head(input_: InputFile, options: ReadOptions) -> None:
    """Raise `ElmoError` if a file is not JSON lines, or its first records lack the column."""
    head = read_head(input_)
    if match := re.match(rb"(?:\xef\xbb\xbf)?\s*(?:(\[)|\{\s*\n)", head):
        kind, remedy = ("a JSON array", ".[]") if match[1] else ("JSON over several lines", ".")
        raise ElmoError(
            f"{input_.url}: is {kind}, not one record per line; convert it: jq -c '{remedy}'"
        )
    span = FileSpan(input_, 0, 0, input_.bytes if input_.compression is None else -1, 0)
    for _, records in blocks(span, options, Accounting()):
        for name in options.keep:
            if all(json.loads(text or "{}").get(name) is None for text in records.kept_json):
                raise ElmoError(
                    f"{input_.url}: no field {name!r} in its first records; set corpus.keep"
                )
        break


def blocks(
    span: FileSpan, options: ReadOptions, accounting: Accounting
) -> Iterator[tuple[bytes, Records]]:
    """Yield the texts of a span's JSON lines in blocks, as `Reader.blocks` says.

    A blank line or null becomes a blank text. `options.size` is the size of the JSON. Fields to
    keep that a record lacks are null.
    """
    first_record = 0
    for raw_block, offset in raw_blocks(span, options.size, "line"):
        check_utf8(span, raw_block, offset)
        lines = raw_block.removesuffix(b"\n").split(b"\n")
        texts, records_json = [], []
        line_offset = offset
        for line in lines:
            try:
                text, record_json = _parse_line(line, options.column, options.keep)
            except ValueError as error:
                source = f"{span.input.url}:{line_number(span, line_offset)}"
                raise ElmoError(f"{source}: {error}") from None
            texts.append(text)
            records_json += [record_json] if options.keep else []
            line_offset += len(line) + 1
        accounting.bytes += len(raw_block)
        accounting.added_newlines += not raw_block.endswith(b"\n")
        accounting.fields += sum(map(len, lines)) - sum(map(len, texts))
        yield join_records(texts, first_record, records_json)
        first_record += len(texts)


def _parse_line(line: bytes, column: str, keep: KeptColumns) -> tuple[bytes, str]:
    """Return the text of one JSON line, and its kept fields as JSON.

    A blank line or null becomes a blank text.
    """
    if not line.strip():
        return line, ""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno}); {_REMEDY}") from None
    except ValueError:
        raise ValueError("a number has too many digits; write it as a string") from None
    except RecursionError:
        raise ValueError(f"nested too deeply; {_REMEDY}") from None
    name, texts = column, list[str | None]()
    try:
        for name in split_column(column, record):
            text = _find_field(record, name)
            if text is not None and not isinstance(text, str):
                type_name = type(text).__name__
                raise ValueError(f"field {name!r} must be a string, found {type_name}; {_REMEDY}")
            if text and "\0" in text:
                raise ValueError(f"field {name!r} contains a zero byte; {_REMEDY}")
            texts.append(text)
    except (KeyError, TypeError):
        fields = (
            f", found {abbreviate_names(record)}" if isinstance(record, dict) and record else ""
        )
        message = f"no field {name!r} in this record{fields}; set corpus.column"
        raise ValueError(message) from None
    record_json = encode_kept(keep, (_field_or_none(record, name) for name in keep)) if keep else ""
    try:
        return join_texts(texts).encode("utf-8"), record_json
    except UnicodeEncodeError:
        problem = f"field {column!r} has an unpaired surrogate, which is not a character"
        raise ValueError(f"{problem}; {_REMEDY}") from None


def _field_or_none(record: Any, column: str) -> Any:
    try:
        return _find_field(record, column)
    except (KeyError, TypeError):
        return None


def _find_field(record: Any, column: str) -> Any:
    """Return the named field of a record; `data.text` is the field `text` of its field `data`."""
    if not isinstance(record, dict) or column in record or "." not in column:
        return record[column]
    name, _, inner_column = column.partition(".")
    return _find_field(record[name], inner_column)
