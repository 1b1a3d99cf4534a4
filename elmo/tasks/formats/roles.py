"""Readers of semantic roles: columns of brackets, one per predicate, and JSON lines."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from elmo.tasks import schemes
from elmo.tasks.examples import Example, Predicate, Span
from elmo.tasks.formats.fields import (
    Columns,
    ExampleSet,
    ReadRequest,
    column_at,
    column_number,
    column_sentences,
    json_records,
    line_error,
    marks_documents,
    read_field,
    read_tokens,
    unsplit_text,
    width_error,
)

_BRACKETS = re.compile(r"((?:\([^()*\s]+)*)\*(\)*)")


def read_conll(request: ReadRequest) -> ExampleSet:
    """Read semantic roles from columns: for each predicate of a sentence, a column that brackets
    its arguments, such as (A0* … *).

    The format is CoNLL-2012 if the file marks documents, else PropBank. PropBank: id, word, tag,
    parse, lemma, roleset, brackets…; CoNLL-2012: document, part, id, word, tag, parse, lemma,
    frameset, sense, speaker, entity, brackets…, coreference.
    """
    counts: Counter[str] = Counter()
    examples: list[Example] = []
    is_ontonotes = marks_documents(request.path)
    word = request.column("word", "4" if is_ontonotes else "2")
    roleset = request.column("predicate", "8" if is_ontonotes else "6")
    first_column = (
        column_number(request.column("arguments", "12" if is_ontonotes else "7"), "arguments") - 1
    )
    for block in column_sentences(request.path):
        width = len(block[0][1])
        for number, fields in block:
            if len(fields) != width:
                raise width_error(request.path, number, len(fields), width, "sentence")
        tokens = tuple(column_at(fields, word, request.path, n) for n, fields in block)
        predicates = [
            k for k, (n, f) in enumerate(block) if column_at(f, roleset, request.path, n) != "-"
        ]
        columns = range(first_column, width - is_ontonotes)
        if not request.labelled and len(predicates) != len(columns):
            columns = range(0)  # arguments are missing, or not complete
        elif len(predicates) != len(columns):
            raise line_error(
                request.path,
                block[0][0],
                f"{len(predicates)} predicates but {len(columns)} columns of arguments",
            )
        counts["sentences"] += 1
        counts["predicates"] += len(predicates)
        for predicate, column in zip_longest(predicates, columns):
            spans, is_nested = (
                ([], False) if column is None else _parse_brackets(block, column, request.path)
            )
            counts["arguments"] += len(spans)
            verb = next((start for start, _, label in spans if label == "V"), predicate)
            source = f"{request.path}:{block[verb][0]}"
            if not request.labelled:
                examples.append(Predicate(source, tokens, verb, None))
            elif is_nested:
                counts["predicates_with_nested_arguments"] += 1
                examples.append(Predicate(source, tokens, verb, None, tuple(spans)))
            else:
                examples.append(Predicate(source, tokens, verb, schemes.to_bio(spans, len(tokens))))
    return ExampleSet(examples, dict(counts), "bio")


def read_rolesets(path: Path, columns: Columns) -> Iterator[list[str]]:
    """Yield the rolesets of each sentence in a file of columns: one for each token, `-` if the
    token is no predicate."""
    column = columns.get("predicate", "8" if marks_documents(path) else "6")
    for block in column_sentences(path):
        yield [column_at(fields, column, path, number) for number, fields in block]


def read_jsonl(request: ReadRequest) -> ExampleSet:
    """Read semantic roles from JSON lines {"tokens": [...], "predicate": 3, "tags": [BIO...]},
    where `predicate` is the index of a token, from 0.

    Unlabelled lines may have "predicates": [3, 7] instead of "predicate" and "tags".
    """
    examples: list[Example] = []
    for number, record in json_records(request):
        tokens = read_tokens(request, record, number)
        source, text = f"{request.path}:{number}", unsplit_text(request, record)
        if request.labelled or "predicate" in record:
            predicates = [read_field(request, record, "predicate", int, number)]
        else:
            predicates = read_field(request, record, "predicates", list[int], number)
        tags = read_field(request, record, "tags", list[str], number) if request.labelled else None
        for predicate in predicates:
            if not 0 <= predicate < len(tokens):
                raise line_error(
                    request.path,
                    number,
                    f"predicate {predicate} is not among its {len(tokens)} tokens",
                )
            if tags is not None:
                if len(tags) != len(tokens):
                    raise line_error(
                        request.path, number, f"has {len(tokens)} tokens but {len(tags)} tags"
                    )
                try:
                    schemes.spans_of_tags(tags, "bio")
                except schemes.TagError as error:
                    raise line_error(request.path, number, str(error)) from None
            examples.append(Predicate(source, tokens, predicate, tags and tuple(tags), text=text))
    return ExampleSet(examples, {"predicates": len(examples)}, "bio")


def _parse_brackets(
    block: Sequence[tuple[int, list[str]]], column: int, path: Path
) -> tuple[list[Span], bool]:
    """Return the spans of a column such as (ARG0*, *, *), and whether any lies inside another."""
    spans: list[Span] = []
    open_spans: list[tuple[int, str]] = []
    is_nested = False
    for position, (number, fields) in enumerate(block):
        match = _BRACKETS.fullmatch(fields[column])
        if match is None:
            raise line_error(path, number, f"{fields[column]!r} is not a bracket such as (ARG0*")
        for label in match[1].split("(")[1:]:
            is_nested = is_nested or bool(open_spans)
            open_spans.append((position, label))
        for _ in match[2]:
            if not open_spans:
                raise line_error(
                    path, number, f"column {column + 1} closes a bracket that is not open"
                )
            start, label = open_spans.pop()
            spans.append(Span(start, position + 1, label))
    if open_spans:
        raise line_error(
            path, block[-1][0], f"column {column + 1} leaves ({open_spans[0][1]}* open"
        )
    return sorted(spans), is_nested
