"""The shared parts of readers: their arguments, and the sentences, rows, records and fields of
files."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elmo.data.tables import explain_wrong_delimiter, read_table
from elmo.data.texts import CHECKED_TEXTS
from elmo.data.tokenizer import (
    NO_TOKENIZER,
    TextTokenizer,
    Tokenization,
    load_sentence_splitter,
    load_tokenizer,
    to_nfc,
)
from elmo.errors import ElmoError
from elmo.io.records import describe_mismatch
from elmo.io.text_files import numbered_lines
from elmo.tasks.examples import Example, Range, Tokens

Columns = Mapping[str, str]
DOCUMENT_MARK = "-DOCSTART-"
_ZERO_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # as JSON writes it
SNIFFED_LINES = 10_000  # lines that are read to find the separator of columns

CONLLU_COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


@dataclass(frozen=True)
class ExampleSet:
    """The examples read from a file, labelled or not, with counts of what was read and dropped, by
    name.

    `scheme` is the scheme of the tags, or `plain` if there are no tags or they mark no spans.
    `remark` warns about a likely mistake in the file; it is empty if there is none. `columns` are
    the columns that the user gave, by field.
    """

    examples: list[Example]
    counts: dict[str, int]
    scheme: str = "plain"
    remark: str = ""
    columns: dict[str, str] = field(default_factory=dict)


class TextSplitter:
    """A callable that splits a text into tokens, and can return their character offsets.
    `tokenizer` is a tokenizer's name, or the `Tokenization` of a model.

    The tokenizer is loaded for the first text, because tokenized data needs none.
    """

    def __init__(self, tokenizer: str | Tokenization) -> None:
        self._tokenizer = tokenizer
        self.first_texts: list[str] = []  # that were split

    def __call__(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        if len(self.first_texts) < CHECKED_TEXTS:
            self.first_texts.append(text)
        return tuple(self._split_text(text))

    @cached_property
    def _split_text(self) -> Callable[[str], list[str]]:
        if isinstance(self._tokenizer, str):
            split = load_tokenizer(self._tokenizer).split
            return lambda text: split([text])[0]
        if self._tokenizer.name == NO_TOKENIZER.name:
            raise ElmoError("the model has no tokenizer to split text; pass --tokenizer")
        tokenize = TextTokenizer(self._tokenizer)
        return lambda text: [token for sentence in tokenize(text) for token in sentence]

    def tokens_and_offsets(self, text: str) -> tuple[Tokens, tuple[Range, ...]]:
        """Return the tokens of a text, and the character range of each."""
        tokens = self(text)
        return tokens, token_offsets(text, tokens)

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text; joined, they give the text."""
        return load_sentence_splitter()[0](text)


@dataclass(frozen=True)
class ReadRequest:
    """A request to a reader: a file, its format, and how to read it.

    `columns` maps fields to columns or keys, `scheme` is the scheme of the tags (None: detect it),
    and `split` splits raw text into tokens. If `labelled` is false, labels may be absent. `items`
    are records in memory, which are read instead of a JSON lines file.
    """

    path: Path
    format: str
    columns: Columns
    scheme: str | None
    split: TextSplitter
    labelled: bool
    items: Sequence[dict[str, Any]] | None = None

    def column(self, field: str, default: str) -> str:
        """Return the column or key of a field: the one in `columns`, or else `default`."""
        return self.columns.get(field, default)


class DocumentBegin(NamedTuple):
    """A line `#begin document` of a CoNLL file: its line number and the document's name."""

    number: int
    name: str


LineBlock = list[tuple[int, list[str]]]


def column_sentences(
    path: Path, *, documents: bool = False, counts: Counter[str] | None = None
) -> Iterator[Any]:
    """Yield the sentences of a file of columns, each as a list of (line number, columns), one per
    token.

    Columns are separated by tabs if the first token's line has one, else by spaces; other white
    space is part of a word. A row that begins with -DOCSTART- ends a sentence and is counted as
    `document_marks` in `counts`. With `documents`, a `DocumentBegin` is yielded where a document
    begins.
    """
    rows = [text for _, text in islice(numbered_lines(path), SNIFFED_LINES) if _is_row(text)]
    first_row = next((text for text in rows if text[0] != "#"), rows[0] if rows else "")
    has_tabs = "\t" in first_row
    width = len(_split_columns(first_row, has_tabs=has_tabs))
    block: LineBlock = []
    for number, text in numbered_lines(path):
        if not _is_row(text):
            if block:
                yield block
            block = []
            if counts is not None and text.startswith(DOCUMENT_MARK):
                counts["document_marks"] += 1
            if documents and text.startswith("#begin"):
                yield DocumentBegin(number, text.removeprefix("#begin document").strip())
        elif block or text[0] != "#" or not _is_comment(text, width, has_tabs=has_tabs):
            block.append((number, _split_columns(text, has_tabs=has_tabs)))
    if block:
        yield block


def _is_row(text: str) -> bool:
    """Tell whether a line has a token or a comment: it is not blank and marks no document."""
    marks = ("#begin document", "#end document", DOCUMENT_MARK)
    return bool(text.strip()) and not text.startswith(marks)


def _split_columns(text: str, *, has_tabs: bool) -> list[str]:
    return text.split("\t") if has_tabs else re.split(r"[ \t]+", text.strip(" \t"))


def _is_comment(text: str, width: int, *, has_tabs: bool) -> bool:
    """Tell whether a line that begins with # before a sentence is a comment: its separator or its
    number of columns differs, or it has " = "."""
    fields = text.split("\t") if has_tabs else text.split()
    if has_tabs and fields[0].startswith("# "):
        return True
    return len(fields) != width or (not has_tabs and ("\t" in text or " = " in text))


def marks_documents(path: Path) -> bool:
    """Tell whether a CoNLL file marks documents: its first non-blank line is `#begin document`."""
    return next((t for _, t in numbered_lines(path) if t.strip()), "").startswith("#begin document")


def table_rows(request: ReadRequest, columns: Columns) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a TSV or CSV file with their line numbers, as dictionaries by field.

    `columns` has the column of each field: either all by name in the header, or all by number from
    1. Raises `ElmoError` if a column is missing, if the header names it twice, or if rows have
    different numbers of columns.
    """
    lines = (f"{text}\n" for _, text in numbered_lines(request.path))
    delimiter = "," if request.format == "csv" else "\t"
    has_only_numbers = all(column.isdecimal() for column in columns.values())
    names: list[str] | None = None
    for number, cells in read_table(lines, delimiter=delimiter, source=request.path):
        if names is None:
            names = [str(k) for k in range(1, len(cells) + 1)] if has_only_numbers else cells
            _check_header(request, number, cells, names, columns)
            if not has_only_numbers:
                continue
        cell_by_name = dict(zip(names, cells, strict=True))
        yield number, {name: cell_by_name[column] for name, column in columns.items()}


def _check_header(
    request: ReadRequest, number: int, cells: Sequence[str], names: Sequence[str], columns: Columns
) -> None:
    """Raise `ElmoError` unless each of `columns` is one of the `names` exactly once. `cells` is the
    first line of the table, line `number`."""
    for name, column in columns.items():
        if list(columns.values()).count(column) > 1:
            problem, remedy = f"column {column!r} is named for two fields", "pass --columns"
        elif names.count(column) == 1:
            continue
        elif column in names:
            problem, remedy = f"the header names {column!r} twice", "rename one"
        elif delimiter_problem := explain_wrong_delimiter(cells):
            raise ElmoError(f"{request.path}:{number}: {delimiter_problem}")
        elif column.isdecimal():
            problem, remedy = f"has {len(names)} columns, so no column {column}", "pass --columns"
        else:
            problem = f"the header has no {column!r}, found {', '.join(names)[:200]}"
            remedy = f"pass --columns {name}=NAME, by number from 1 if there is no header"
        raise line_error(request.path, number, problem, remedy)


def read_records(
    request: ReadRequest, fields: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a TSV, CSV, JSON lines or text file with their line numbers.

    `fields` are the fields to read from a table; `label` is left out if the request needs no
    labels. A line of text becomes a record with the field `text`.
    """
    if request.format == "jsonl":
        yield from json_records(request)
    elif request.format == "text":
        yield from ((number, {"text": text}) for number, text in text_lines(request))
    else:
        columns = {name: request.column(name, name) for name in fields}
        if not request.labelled:
            del columns["label"]
        yield from table_rows(request, columns)


def text_lines(request: ReadRequest, *, keep_blank: bool = False) -> list[tuple[int, str]]:
    """Return the lines of a plain text with their numbers, with blank lines if `keep_blank`.

    Raises `ElmoError` if the request needs labels, which plain text does not have.
    """
    if request.labelled:
        raise ElmoError(
            f"{request.path}: is plain text, which has no labels; if the file has labels, pass "
            "--format, such as conll or tsv"
        )
    return [(n, text) for n, text in numbered_lines(request.path) if keep_blank or text.strip()]


def json_records(request: ReadRequest) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers; keys are renamed to the fields that
    `request.columns` maps to them.

    Records in memory (`items`) are numbered from 0.
    """
    name_by_key = {key: name for name, key in request.columns.items()}
    for number, record in enumerate(request.items or ()):
        yield number, {name_by_key.get(key, key): value for key, value in record.items()}
    if request.items is not None:
        return
    for number, text in numbered_lines(request.path):
        if text.strip():
            if _ZERO_BYTE.search(text):
                raise line_error(request.path, number, "has a zero byte, \\u0000")
            try:
                record = msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                is_array = text.lstrip()[0] == "["
                problem = f"is not a JSON object, found {'an array' if is_array else text:.60}"
                remedy = "write one object a line"
                raise line_error(request.path, number, problem, remedy) from None
            yield number, {name_by_key.get(key, key): value for key, value in record.items()}


def read_tokens(
    request: ReadRequest, record: Mapping[str, Any], number: int, name: str = "text"
) -> Tokens:
    """Return the tokens of a record's field: a list unchanged, a text split by the tokenizer.

    A field `tokens` takes precedence over the field `text`. `number` is the line's number, for
    error messages.
    """
    if name == "text" and "tokens" in record:
        return tuple(read_field(request, record, "tokens", list[str], number))
    value = read_field(request, record, name, str | list[str], number)
    if isinstance(value, str):
        return request.split(value)
    return tuple(value)


def read_label(request: ReadRequest, record: Mapping[str, Any], number: int) -> str | None:
    """Return the record's label as text, or None if the request does not require labels.

    `number` is the line's number, for error messages.
    """
    if not request.labelled:
        return None
    label = read_field(request, record, "label", str | int, number)
    return str(label).strip()


def read_field(
    request: ReadRequest, record: Mapping[str, Any], name: str, field_type: Any, number: int
) -> Any:
    """Return a record's field, converted to type `field_type`.

    Raises `ElmoError`, with line `number`, if the field is missing or has another type.
    """
    if name not in record:
        problem = f"has no {name!r}, found {', '.join(map(str, record)) or 'nothing'}"
        raise line_error(request.path, number, problem, "rename one, or name it in columns")
    try:
        return msgspec.convert(record[name], field_type)
    except msgspec.ValidationError as error:
        key_path, problem = describe_mismatch(error)
        raise line_error(request.path, number, f"{name}{key_path} {problem}") from None


def column_at(fields: Sequence[str], column: str, path: Path, number: int) -> str:
    """Return one of a line's columns by its position: from 1, or from the end by -1, -2, …

    Raises `ElmoError`, with the line (`path`, `number`), if it has no such column.
    """
    position = column_number(column, column)
    if not 1 <= abs(position) <= len(fields):
        problem = f"has {len(fields)} columns, so no column {position}"
        raise line_error(path, number, problem, "pass --columns")
    return fields[position - 1 if position > 0 else position]


def conllu_field(fields: Sequence[str], column: str, path: Path, number: int) -> str:
    """Return a column of CoNLL-U by its number or name, or the value of a key in it (MISC.NER).

    Raises `ElmoError`, with the line (`path`, `number`), if it is missing.
    """
    name, _, key = column.partition(".")
    if name in CONLLU_COLUMNS:
        value = fields[CONLLU_COLUMNS.index(name)]
    else:
        value = column_at(fields, name, path, number)
    if not key:
        return value
    values = dict(part.partition("=")[::2] for part in value.split("|"))
    if key not in values:
        raise line_error(path, number, f"{name} has no {key}=")
    return values[key]


def column_number(column: str, name: str) -> int:
    """Return a column number as an integer; raise `ElmoError` with the field `name` if invalid."""
    try:
        return int(column)
    except ValueError:
        raise ElmoError(f"--columns: {name} must be a column's number, found {column!r}") from None


def unsplit_text(request: ReadRequest, record: Mapping[str, Any]) -> str | None:
    """Return the text that `read_tokens` splits; None if the record has tokens instead, or if the
    request needs labels."""
    text = None if request.labelled or "tokens" in record else record.get("text")
    return text if isinstance(text, str) else None


def token_offsets(text: str, tokens: Sequence[str]) -> tuple[Range, ...]:
    """Return the character range in `text` of each of its tokens.

    The tokens may be in another Unicode form than the text.
    """
    offsets, stop = [], 0
    for token in tokens:
        start = text.find(token, stop)
        if start < 0 or text[stop:start].strip():
            start = stop + len(text[stop:]) - len(text[stop:].lstrip())
        stop = start + len(token)
        while stop < len(text) and text[start:stop] != token != to_nfc(text[start:stop]):
            stop += 1
        offsets.append((start, stop))
    return tuple(offsets)


def tokens_covering(offsets: Sequence[Range], start: int, stop: int) -> Range:
    """Return the range of tokens that overlap the characters `start` to `stop - 1`.

    `offsets` are the tokens' character ranges.
    """
    indices = [
        k
        for k, (token_start, token_stop) in enumerate(offsets)
        if token_start < stop and token_stop > start
    ]
    return indices[0], indices[-1] + 1


def width_error(path: Path, number: int, width: int, first_width: int, unit: str) -> ElmoError:
    """Return the exception for line `number`, which has `width` columns, although the first line of
    its `unit`, such as a sentence, has `first_width`."""
    columns = f"{width} column{'s' * (width != 1)}"
    return line_error(
        path, number, f"{columns} here, {first_width} in the first line of its {unit}"
    )


def line_error(
    path: Path, number: int, problem: str, remedy: str = "correct it, or leave it out"
) -> ElmoError:
    """Return the exception for the malformed line `number` of a file."""
    return ElmoError(f"{path}:{number}: {problem}; {remedy}")
