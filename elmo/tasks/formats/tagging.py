"""Readers of sentences to tag: columns, CoNLL-U, JSON lines and plain text."""

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


class _Sentence(NamedTuple):
    """A sentence: its tokens, its tags if any, the line of each token, and the text that it was
    split from, if any."""

    tokens: Tokens
    tags: list[str] | None
    lines: list[int]
    text: str | None = None


def read_conll(request: ReadRequest) -> ExampleSet:
    """Read columns separated by tabs or spaces: a token per line, a blank line after each sentence.
    The word is in the first column and the tag in the last, unless the request says otherwise."""
    counts: Counter[str] = Counter()
    sentences: list[_Sentence] = []
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
        sentences.append(_Sentence(tokens, tags, [number for number, _ in block]))
    return _make_examples(request, sentences, counts)


def read_conllu(request: ReadRequest) -> ExampleSet:
    """Read tagged sentences from CoNLL-U, by default with the tags of UPOS; ranges (1-2) and empty
    nodes (1.1) are skipped."""
    counts: Counter[str] = Counter()
    sentences: list[_Sentence] = []
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
        sentences.append(_Sentence(tokens, tags, [number for number, _ in words]))
    return _make_examples(request, sentences, counts)


def read_jsonl(request: ReadRequest) -> ExampleSet:
    """Read tagged sentences from JSON lines {"tokens": [...], "tags": [...]}, or {"text": …}
    without tags."""
    sentences = []
    for number, record in json_records(request):
        tokens = read_tokens(request, record, number)
        tags = read_field(request, record, "tags", list[str], number) if request.labelled else None
        if tags is not None and len(tags) != len(tokens):
            raise line_error(request.path, number, f"has {len(tokens)} tokens but {len(tags)} tags")
        text = unsplit_text(request, record)
        sentences.append(_Sentence(tokens, tags, [number] * len(tokens), text))
    return _make_examples(request, sentences, Counter())


def read_text(request: ReadRequest) -> ExampleSet:
    """Read plain text to be tagged, one sentence per line."""
    sentences = [_Sentence(request.split(text), None, [n], text) for n, text in text_lines(request)]
    return _make_examples(request, sentences, Counter())


def _check_plain_scheme(request: ReadRequest, sentences: Sequence[_Sentence]) -> None:
    """Raise `ElmoError` for a tag that looks like a span tag but fits no scheme."""
    misfits = schemes.find_misfit_tags({tag for s in sentences for tag in s.tags or ()})
    for sentence in sentences:
        for position, tag in enumerate(sentence.tags or ()):
            if tag in misfits:
                raise line_error(
                    request.path,
                    sentence.lines[position],
                    f"tag {tag!r} fits no scheme, though the tags seem to mark spans",
                    "write O, B-LABEL and I-LABEL, or pass --scheme plain if they mark none",
                )


def _make_examples(
    request: ReadRequest, sentences: Sequence[_Sentence], counts: Counter[str]
) -> ExampleSet:
    """Return the examples; tags of spans are converted to BIOES, other tags unchanged."""
    first_sentence = next((sentence for sentence in sentences if sentence.tokens), None)
    if request.labelled and first_sentence and all(s.tags == list(s.tokens) for s in sentences):
        remedy = "name their column: --columns tag=2"
        raise line_error(request.path, first_sentence.lines[0], "the tags repeat the words", remedy)
    scheme = request.scheme or schemes.detect_scheme(s.tags for s in sentences if s.tags)
    remark = ""
    if scheme == "plain" and request.scheme is None:
        _check_plain_scheme(request, sentences)
        if any("O" in s.tags for s in sentences if s.tags):
            remark = (
                "the tags mark no spans, so each token counts; if O means outside of a span, write "
                "B-LABEL where a span begins and I-LABEL within it"
            )
    examples: list[Example] = []
    for tokens, tags, lines, text in sentences:
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
        tag_tuple = None if tags is None else tuple(tags)
        examples.append(Tagged(f"{request.path}:{lines[0]}", tokens, tag_tuple, text))
    counts["sentences"] = len(examples)
    counts["tokens"] = sum(len(e.tokens) for e in examples if isinstance(e, Tagged))
    return ExampleSet(examples, dict(counts), scheme, remark)
