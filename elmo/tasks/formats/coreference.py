"""Readers of coreference: CoNLL-2012 columns (also LitBank), GAP, JSON lines, plain text."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elmo.tasks.examples import Document, Example, Link, Range, Tokens
from elmo.tasks.formats.fields import (
    DocumentBegin,
    ExampleSet,
    ReadRequest,
    TextSplitter,
    column_at,
    column_sentences,
    json_records,
    line_error,
    read_field,
    table_rows,
    text_lines,
    tokens_covering,
)

GAP_SPANS = ("Pronoun", "A", "B")
_MENTION = re.compile(r"(\()?(\w+)(\))?")


def document_record(text: str, split: TextSplitter) -> dict[str, Any]:
    """Return a text as a record of JSON lines: a document's sentences, each a list of tokens."""
    return {"sentences": [list(split(sentence)) for sentence in split.sentences(text)]}


def read_conll(request: ReadRequest) -> ExampleSet:
    """Read documents in CoNLL-2012 columns (also LitBank): words in column 4, clusters in the last,
    unless the request says otherwise.

    In the cluster column, `(3` begins a mention of cluster 3, `3)` ends it, and `|` separates them.
    """
    documents: list[Example] = []
    counts: Counter[str] = Counter()
    word = request.column("word", "4")
    cluster = request.column("cluster", "-1")
    name, first_line = "", 0
    sentences: list[Tokens] = []
    clusters: dict[str, list[Range]] = {}

    def add_document() -> None:
        if sentences:
            documents.append(
                _make_document(
                    f"{request.path}:{first_line}",
                    name,
                    sentences,
                    list(clusters.values()) if request.labelled else None,
                    counts,
                )
            )

    for block in column_sentences(request.path, documents=True):
        if isinstance(block, DocumentBegin):
            add_document()
            name, first_line, sentences, clusters = block.name, block.number, [], {}
            continue
        if not name:
            raise line_error(request.path, block[0][0], "comes before any '#begin document' line")
        offset = sum(map(len, sentences))
        sentences.append(tuple(column_at(fields, word, request.path, n) for n, fields in block))
        if request.labelled:
            _add_mentions(block, cluster, offset, clusters, request.path)
    add_document()
    counts["documents"] = len(documents)
    return ExampleSet(documents, dict(counts))


def _add_mentions(
    block: Sequence[tuple[int, list[str]]],
    column: str,
    offset: int,
    clusters: dict[str, list[Range]],
    path: Path,
) -> None:
    """Add the mentions in a sentence to their clusters; the sentence begins at token `offset`."""
    open_spans: dict[str, list[int]] = {}
    for position, (number, fields) in enumerate(block):
        value = column_at(fields, column, path, number)
        for part in value.split("|") if value not in ("", "-", "_", "*") else []:
            match = _MENTION.fullmatch(part)
            if match is None or not (match[1] or match[3]):
                raise line_error(path, number, f"{part!r} is not a mention such as (3 or 3) or (3)")
            if match[1]:
                open_spans.setdefault(match[2], []).append(position)
            if match[3]:
                if not open_spans.get(match[2]):
                    raise line_error(path, number, f"{part} closes a mention that is not open")
                start = open_spans[match[2]].pop()
                span = (offset + start, offset + position + 1)
                clusters.setdefault(match[2], []).append(span)
    for label, starts in open_spans.items():
        if starts:
            raise line_error(path, block[starts[0]][0], f"({label} is not closed in its sentence")


def read_jsonl(request: ReadRequest) -> ExampleSet:
    """Read documents from JSON lines {"sentences": [[tokens]], "clusters": [[[start, stop], …]]}.

    Spans count the tokens of the whole document.
    """
    documents: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in json_records(request):
        sentences = read_field(request, record, "sentences", list[list[str]], number)
        clusters = None
        if request.labelled:
            clusters = read_field(request, record, "clusters", list[list[tuple[int, int]]], number)
        ends = {0}
        for sentence in sentences:
            ends.add(max(ends) + len(sentence))
        for start, stop in (span for cluster in clusters or [] for span in cluster):
            if not 0 <= start < stop <= max(ends):
                raise line_error(request.path, number, f"span [{start}, {stop}] is not in the text")
        name = str(record.get("id", number))
        texts = [tuple(sentence) for sentence in sentences if sentence]
        if texts:
            source = f"{request.path}:{number}"
            documents.append(_make_document(source, name, texts, clusters, counts))
        else:
            counts["dropped_empty"] += 1
    counts["documents"] = len(documents)
    return ExampleSet(documents, dict(counts))


def read_text(request: ReadRequest) -> ExampleSet:
    """Read documents to predict from plain text: one sentence per line, and a blank line between
    documents."""
    documents: list[Example] = []
    sentences: list[Tokens] = []
    for number, text in [*text_lines(request, keep_blank=True), (0, "")]:
        if text.strip():
            sentences.append(request.split(text))
        elif sentences:
            source = f"{request.path}:{number - len(sentences)}" if number else str(request.path)
            documents.append(Document(source, str(len(documents)), tuple(sentences), None))
            sentences = []
    return ExampleSet(documents, {"documents": len(documents)})


def read_gap(request: ReadRequest) -> ExampleSet:
    """Read the TSV of GAP, a corpus of ambiguous pronouns.

    Each row has a text, a pronoun and two names by character offset, and which name corefers.
    """
    documents: list[Example] = []
    counts: Counter[str] = Counter()
    columns = ["ID", "Text", *GAP_SPANS, *(f"{name}-offset" for name in GAP_SPANS)]
    columns += ["A-coref", "B-coref"] if request.labelled else []
    for number, row in table_rows(request, {name: name for name in columns}):
        text = row["Text"]
        sentences, offsets = [], []
        sentence_start = 0
        for sentence in request.split.sentences(text):
            tokens, ranges = request.split.tokens_and_offsets(sentence)
            if tokens:
                sentences.append(tokens)
                offsets += [(sentence_start + a, sentence_start + b) for a, b in ranges]
            sentence_start += len(sentence)
        spans = {}
        for role in GAP_SPANS:
            try:
                start = int(row[f"{role}-offset"])
            except ValueError:
                raise line_error(request.path, number, f"{role}-offset must be a number") from None
            coref_text = row.get(f"{role}-coref", "FALSE").upper()
            stop = start + len(row[role])
            if start < 0 or not row[role].strip() or text[start:stop] != row[role]:
                raise line_error(
                    request.path, number, f"{role} {row[role]!r} is not at character {start}"
                )
            if coref_text not in ("TRUE", "FALSE"):
                raise line_error(request.path, number, f"{role}-coref must be TRUE or FALSE")
            span = tokens_covering(offsets, start, stop)
            is_exact = (offsets[span[0]][0], offsets[span[1] - 1][1]) == (start, stop)
            counts["spans_wider_in_tokens"] += not is_exact
            spans[role] = span, coref_text == "TRUE"
        pronoun = spans["Pronoun"][0]
        links = tuple(Link(pronoun, *spans[name]) for name in ("A", "B"))
        cluster = (pronoun, *(link.name for link in links if link.is_coreferent))
        clusters = (
            ((tuple(sorted(cluster)),) if len(cluster) > 1 else ()) if request.labelled else None
        )
        source = f"{request.path}:{number}"
        documents.append(Document(source, row["ID"], tuple(sentences), clusters, links))
    counts["documents"] = len(documents)
    return ExampleSet(documents, dict(counts))


def _make_document(
    source: str,
    name: str,
    sentences: Sequence[Tokens],
    clusters: Sequence[Sequence[Range]] | None,
    counts: Counter[str],
) -> Document:
    """Return a document. Clusters that share a span are joined, clusters of one span dropped."""
    if clusters is None:
        return Document(source, name, tuple(sentences), None)
    merged_clusters: list[set[Range]] = []
    for cluster in clusters:
        spans = {(int(start), int(stop)) for start, stop in cluster}
        matches = [group for group in merged_clusters if group & spans]
        counts["clusters_joined"] += len(matches)
        merged_clusters = [group for group in merged_clusters if not group & spans] + [
            spans.union(*matches)
        ]
    clusters = tuple(tuple(sorted(cluster)) for cluster in merged_clusters if len(cluster) > 1)
    counts["clusters"] += len(clusters)
    counts["dropped_clusters_of_one"] += len(merged_clusters) - len(clusters)
    return Document(source, name, tuple(sentences), tuple(sorted(clusters)))
