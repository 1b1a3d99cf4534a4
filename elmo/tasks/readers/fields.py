"""Shared parts of readers: requests, sentence blocks, table rows, JSON lines and their fields."""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elmo.data.tables import read_table
from elmo.data.tokenizer import (
    NONE,
    TextTokenizer,
    Tokenization,
    load_tokenizer,
    sentence_splitter,
)
from elmo.errors import ElmoError
from elmo.tasks.examples import Example, Range, Tokens
from elmo.tasks.lines import lines_of, open_data

Columns = Mapping[str, str]


CONLLU = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


_JSON_LIMIT = 1 << 30


@dataclass(frozen=True)
class Labelled:
    """The examples of a file, with counts of what was read and dropped, and the scheme of its
    tags."""

    examples: list[Example]
    counts: dict[str, int]
    scheme: str = "plain"


class TextTokens:
    """A callable that splits a text into tokens, and also gives their character offsets.

    The tokenizer is loaded with the first text: data that is already tokenized needs none.
    """

    def __init__(self, tokenizer: str | Tokenization) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> Tokens:
        """Return the tokens of a text."""
        return tuple(self._cut(text))

    @cached_property
    def _cut(self) -> Callable[[str], list[str]]:
        if isinstance(self._tokenizer, str):
            split = load_tokenizer(self._tokenizer).split
            return lambda text: split([text])[0]
        if self._tokenizer.name == NONE.name:
            raise ElmoError("the model has no tokenizer to cut text with; pass --tokenizer")
        cut = TextTokenizer(self._tokenizer)
        return lambda text: [token for sentence in cut(text) for token in sentence]

    def with_offsets(self, text: str) -> tuple[Tokens, tuple[Range, ...]]:
        """Return the tokens of a text, and the character range of each."""
        tokens, offsets, start = self(text), [], 0
        for token in tokens:
            start = text.index(token, start)
            offsets.append((start, start + len(token)))
            start += len(token)
        return tokens, tuple(offsets)

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text; joined, they are the text."""
        return sentence_splitter()[0](text)


@dataclass(frozen=True)
class Request:
    """The arguments of a reader. If `labelled` is false, labels may be absent.

    `items` are records in memory, read instead of the lines of a JSON lines file.
    """

    path: Path
    format: str
    columns: Columns
    scheme: str | None
    split: TextTokens
    labelled: bool
    items: Sequence[dict[str, Any]] | None = None

    def column(self, field: str, default: str) -> str:
        """Return the column or key that a field is read from."""
        return self.columns.get(field, default)


class Begin(NamedTuple):
    """A line `#begin document`: its line number and the document's name."""

    number: int
    name: str


LineBlock = list[tuple[int, list[str]]]


def blocks(path: Path, *, documents: bool = False) -> Iterator[Any]:
    """Yield sentences as lists of (line number, columns).

    Columns are separated by tabs if the file has any, else by spaces. Before a sentence's first
    token, a line that begins with # is a comment if it has no tab (in a file with tabs) or has " =
    " (in a file without). With `documents`, a `Begin` is yielded for the beginning of each
    document.
    """
    tabs = "\t" in next((t for _, t in lines_of(path) if t.strip() and t[0] != "#"), "")
    block: LineBlock = []
    for number, text in lines_of(path):
        mark = text.startswith(("#begin document", "#end document"))
        if not text.strip() or mark:
            if block:
                yield block
            block = []
            if documents and text.startswith("#begin"):
                yield Begin(number, text.removeprefix("#begin document").strip())
        elif block or text[0] != "#" or ("\t" in text if tabs else " = " not in text):
            block.append((number, text.split("\t") if tabs else text.split()))
    if block:
        yield block


def marks_documents(path: Path) -> bool:
    """Tell whether a file's first non-blank line begins a CoNLL document."""
    return next((t for _, t in lines_of(path) if t.strip()), "").startswith("#begin document")


def table(request: Request, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a TSV or CSV file as dictionaries, keyed by its header, with line
    numbers."""
    names: list[str] = []
    for number, fields in _rows(request):
        if not names:
            names = fields
            missing = [name for name in needed if name not in names]
            if missing:
                name = missing[0]
                field = next((one for one, at in request.columns.items() if at == name), name)
                raise line_error(
                    request.path,
                    number,
                    f"the header has no {name!r}, found {', '.join(names)[:200]}; pass "
                    f"--columns {field}=NAME, by number from 1 where there is no header",
                )
            twice = [name for name in names if name and names.count(name) > 1]
            if twice:
                raise line_error(
                    request.path, number, f"the header names {twice[0]!r} twice; rename one"
                )
        elif len(fields) != len(names):
            raise line_error(request.path, number, f"{len(fields)} columns, {len(names)} before")
        else:
            yield number, dict(zip(names, fields, strict=True))


def _rows(request: Request) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a TSV or CSV file, each with the number of the line where it begins."""
    lines = lines_of(request.path)
    if request.format == "csv":
        return read_table((f"{text}\n" for _, text in lines), delimiter=",", source=request.path)
    return ((number, text.split("\t")) for number, text in lines)


def records(request: Request, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a TSV, CSV, JSON lines or text file, keyed by `fields`, with line
    numbers."""
    if request.format == "jsonl":
        yield from json_records(request)
        return
    if request.format == "text":
        for number, text in text_lines(request):
            yield number, {"text": text}
        return
    wanted = {name: request.column(name, name) for name in fields}
    if not request.labelled:
        del wanted["label"]
    if all(value.isdecimal() for value in wanted.values()):
        for number, row in _rows(request):
            yield number, {n: pick(row, c, request.path, number) for n, c in wanted.items()}
        return
    for number, by_name in table(request, list(wanted.values())):
        yield number, {name: by_name[column] for name, column in wanted.items()}


def text_lines(request: Request, *, blank: bool = False) -> list[tuple[int, str]]:
    """Return the lines of a plain text with their numbers, blank lines too if `blank`.

    `ElmoError` is raised if labels are required, which plain text has not.
    """
    if request.labelled:
        raise ElmoError(
            f"{request.path}: is read as plain text, which has no labels; where it has, name its "
            "--format, such as conll or tsv"
        )
    return [(n, text) for n, text in lines_of(request.path) if blank or text.strip()]


def json_records(request: Request) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers, with keys renamed as `columns`
    says."""
    if request.items is not None:
        yield from enumerate(request.items)
        return
    renamed = {key: name for name, key in request.columns.items()}
    for number, text in lines_of(request.path):
        if text.strip():
            try:
                record = msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError) as error:
                raise line_error(request.path, number, f"not a JSON object ({error})") from None
            yield number, {renamed.get(key, key): value for key, value in record.items()}


def tokens_of(
    request: Request, record: Mapping[str, Any], number: int, name: str = "text"
) -> Tokens:
    """Return the tokens of a record's field: a list as it is, a text split by the tokenizer.

    For the field `text`, a field `tokens` takes precedence.
    """
    if name == "text" and "tokens" in record:
        return tuple(field(request, record, "tokens", list[str], number))
    value = field(request, record, name, str | list[str], number)
    if isinstance(value, str):
        return request.split(value)
    return tuple(value)


def label_of(request: Request, record: Mapping[str, Any], number: int) -> str | None:
    """Return the record's label as text, or None if the request does not require labels."""
    if not request.labelled:
        return None
    label = field(request, record, "label", str | int, number)
    return str(label).strip()


def field(request: Request, record: Mapping[str, Any], name: str, kind: Any, number: int) -> Any:
    """Return a record's field as type `kind`; raise `ElmoError` with its line if it is of another
    type."""
    if name not in record:
        raise line_error(request.path, number, f"has no {name!r}; it has {', '.join(record)}")
    try:
        return msgspec.convert(record[name], kind)
    except msgspec.ValidationError as error:
        raise line_error(request.path, number, f"{name}: {error}") from None


def pick(fields: Sequence[str], column: str, path: Path, number: int) -> str:
    """Return the column with the given number, from 1, or from the end by -1, -2, …"""
    position = column_number(column, column)
    if not 1 <= abs(position) <= len(fields):
        raise line_error(path, number, f"has {len(fields)} columns, none is {position}")
    return fields[position - 1 if position > 0 else position]


def conllu_field(fields: Sequence[str], column: str, path: Path, number: int) -> str:
    """Return a column of CoNLL-U by its number or name, or the value of a key in it (MISC.NER)."""
    name, _, key = column.partition(".")
    if name in CONLLU:
        value = fields[CONLLU.index(name)]
    else:
        value = pick(fields, name, path, number)
    if not key:
        return value
    values = dict(part.partition("=")[::2] for part in value.split("|"))
    if key not in values:
        raise line_error(path, number, f"{name} has no {key}=")
    return values[key]


def column_number(column: str, name: str) -> int:
    """Return a column number as an integer; raise `ElmoError` if it is not one."""
    try:
        return int(column)
    except ValueError:
        raise ElmoError(f"--columns: {name} must be a column's number, found {column!r}") from None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressing gzip.

    `ElmoError` is raised if the file is missing, too large or damaged.
    """
    with open_data(path) as file:
        data = file.read(_JSON_LIMIT + 1)
    if len(data) > _JSON_LIMIT:
        raise ElmoError(f"{path}: has over {_JSON_LIMIT:,} bytes; cut it into files, or JSON lines")
    return data.removeprefix(codecs.BOM_UTF8)


def covering(offsets: Sequence[Range], start: int, stop: int) -> Range:
    """Return the range of tokens that overlap the characters `start` to `stop - 1`."""
    touched = [k for k, (first, last) in enumerate(offsets) if first < stop and last > start]
    return touched[0], touched[-1] + 1


def line_error(path: Path, number: int, what: str) -> ElmoError:
    """Return the exception for a malformed line of a file."""
    return ElmoError(f"{path}:{number}: {what}")
