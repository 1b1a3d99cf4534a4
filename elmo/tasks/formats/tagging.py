"""Readers of tagged sentences: columns, CoNLL-U, JSON lines, and plain text to be tagged."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from elmo.tasks import schemes
from elmo.tasks.examples import Example, Tagged, Tokens
from elmo.tasks.formats.fields import (
    CONLLU_COLUMNS,
    ExampleSet,
    LineBlock,
    ReadRequest,
    column_at,
    column_sentences,
    conllu_field,
    json_records,
    line_error,
    read_field,
    read_tokens,
    text_lines,
    unsplit_text,
    width_error,
)


class _Row(NamedTuple):
    """A sentence, its tags if it has some, the line of each token, and its text if it was split
    from one."""

    tokens: Tokens
    tags: list[str] | None
    lines: list[int]
    text: str | None = None


def read_conll(request: ReadRequest) -> ExampleSet:
    """Read columns separated by tabs or spaces: a token per line, a blank line after each sentence.
    The word is in the first column and the tag in the last, unless the request says otherwise."""
    counts: Counter[str] = Counter()
    rows: list[_Row] = []
    word, tag = request.column("word", "1"), request.column("tag", "-1")
    for block in column_sentences(request.path, counts=counts):
        width = len(block[0][1])
        if request.labelled and width < 2:
            raise line_error(request.path, block[0][0], "has one column", "add a column of tags")
        for number, fields in block:
            if len(fields) != width and tag.startswith("-"):
                raise width_error(request.path, number, len(fields), width, "sentence")
        tags = None
        if request.labelled:
            tags = [column_at(f, tag, request.path, n).strip(" ") for n, f in block]
        tokens = tuple(column_at(f, word, request.path, n) for n, f in block)
        rows.append(_Row(tokens, tags, [number for number, _ in block]))
    return _make_examples(request, rows, counts)


def read_conllu(request: ReadRequest) -> ExampleSet:
    """Read tagged sentences from CoNLL-U, by default with the tags of UPOS; ranges (1-2) and empty
    nodes (1.1) are skipped."""
    counts: Counter[str] = Counter()
    rows: list[_Row] = []
    word, tag = request.column("word", "FORM"), request.column("tag", "UPOS")
    for block in column_sentences(request.path):
        words: LineBlock = []
        for number, fields in block:
            if len(fields) != len(CONLLU_COLUMNS):
                raise line_error(request.path, number, f"{len(fields)} columns, CoNLL-U has 10")
            if re.fullmatch(r"\d+[-.]\d+", fields[0]):
                counts["ranges_and_empty_nodes"] += 1
            elif fields[0] != str(len(words) + 1):
                raise line_error(
                    request.path, number, f"token ID {fields[0]!r} follows {len(words)}"
                )
            else:
                words.append((number, fields))
        if not words:
            raise line_error(request.path, block[0][0], "a sentence has no tokens")
        tags = (
            [conllu_field(f, tag, request.path, n) for n, f in words] if request.labelled else None
        )
        if tags and "_" in tags:
            counts["dropped_without_tags"] += 1
            continue
        tokens = tuple(conllu_field(f, word, request.path, n) for n, f in words)
        rows.append(_Row(tokens, tags, [number for number, _ in words]))
    return _make_examples(request, rows, counts)


def read_jsonl(request: ReadRequest) -> ExampleSet:
    """Read tagged sentences from JSON lines {"tokens": [...], "tags": [...]}, or {"text": …}
    without tags."""
    rows = []
    for number, record in json_records(request):
        tokens = read_tokens(request, record, number)
        tags = read_field(request, record, "tags", list[str], number) if request.labelled else None
        if tags is not None and len(tags) != len(tokens):
            raise line_error(request.path, number, f"has {len(tokens)} tokens but {len(tags)} tags")
        rows.append(_Row(tokens, tags, [number] * len(tokens), unsplit_text(request, record)))
    return _make_examples(request, rows, Counter())


def read_text(request: ReadRequest) -> ExampleSet:
    """Read plain text to be tagged, one sentence per line."""
    rows = [_Row(request.split(text), None, [n], text) for n, text in text_lines(request)]
    return _make_examples(request, rows, Counter())


def _check_plain_scheme(request: ReadRequest, rows: Sequence[_Row]) -> None:
    """Raise `ElmoError` for tags that look like those of a scheme and fit none."""
    misfits = schemes.find_misfit_tags({tag for row in rows for tag in row.tags or ()})
    for row in rows:
        for position, tag in enumerate(row.tags or ()):
            if tag in misfits:
                raise line_error(
                    request.path,
                    row.lines[position],
                    f"tag {tag!r} fits no scheme, though the tags seem to mark spans",
                    "write O, B-LABEL and I-LABEL, or pass --scheme plain if they mark none",
                )


def _make_examples(request: ReadRequest, rows: Sequence[_Row], counts: Counter[str]) -> ExampleSet:
    """Return sentences with their tags as BIOES, or unchanged if the tags mark no spans."""
    first_row = next((row for row in rows if row.tokens), None)
    if request.labelled and first_row and all(row.tags == list(row.tokens) for row in rows):
        remedy = "name their column: --columns tag=2"
        raise line_error(request.path, first_row.lines[0], "the tags repeat the words", remedy)
    scheme = request.scheme or schemes.detect_scheme(row.tags for row in rows if row.tags)
    remark = ""
    if scheme == "plain" and request.scheme is None:
        _check_plain_scheme(request, rows)
        if any("O" in row.tags for row in rows if row.tags):
            remark = (
                "the tags mark no spans, so each token counts; if O means outside of a span, write "
                "B-LABEL where a span begins and I-LABEL within it"
            )
    examples: list[Example] = []
    for tokens, tags, lines, text in rows:
        if not tokens:
            counts["dropped_empty"] += 1
            continue
        if tags is not None and "" in tags:
            raise line_error(
                request.path,
                lines[tags.index("")],
                "a token has an empty tag",
                "write it, or name its column, such as --columns tag=2",
            )
        if tags is not None and scheme != "plain":
            try:
                spans = schemes.spans_of_tags(tags, scheme)
            except schemes.TagError as error:
                raise line_error(
                    request.path,
                    lines[error.position],
                    str(error),
                    f"correct it, or pass --scheme (one of {', '.join(schemes.SCHEMES)})",
                ) from None
            counts["spans"] += len(spans)
            tags = list(schemes.to_bioes(spans, len(tags)))
        tag_row = None if tags is None else tuple(tags)
        examples.append(Tagged(f"{request.path}:{lines[0]}", tokens, tag_row, text))
    counts["sentences"] = len(examples)
    counts["tokens"] = sum(len(e.tokens) for e in examples if isinstance(e, Tagged))
    return ExampleSet(examples, dict(counts), scheme, remark)
