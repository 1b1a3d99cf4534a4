"""The examples of tasks: one record type per kind of task, and labelled spans.

Spans are half-open: tokens `start` to `stop - 1`. `source` is the file and line of an example, for
error messages. Labels that an unlabelled example lacks are None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Tokens = tuple[str, ...]


class Span(NamedTuple):
    """A labelled span: tokens `start` to `stop - 1`."""

    start: int
    stop: int
    label: str


Range = tuple[int, int]


@dataclass(frozen=True)
class Tagged:
    """A sentence with one tag per token; tags of spans use the BIOES scheme."""

    source: str
    tokens: Tokens
    tags: Tokens | None

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return [self.tokens]


@dataclass(frozen=True)
class Classified:
    """A text with one label."""

    source: str
    tokens: Tokens
    label: str | None

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return [self.tokens]


@dataclass(frozen=True)
class Pair:
    """A pair of sentences with one label."""

    source: str
    premise: Tokens
    hypothesis: Tokens
    label: str | None

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return [self.premise, self.hypothesis]


@dataclass(frozen=True)
class Question:
    """A question about a paragraph.

    `offsets` are the character ranges of the paragraph's tokens. `answers` are the reference
    answers as text; `answer` is the token span to learn.
    """

    source: str
    id: str
    text: str
    tokens: Tokens
    offsets: tuple[Range, ...]
    question: Tokens
    answers: tuple[str, ...] | None
    answer: Range | None

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for; a paragraph is read as one
        sequence."""
        return [self.tokens, self.question]

    def cut(self, start: int, stop: int) -> str:
        """Return the text of tokens `start` to `stop - 1` exactly as it appears in the
        paragraph."""
        if start == stop:
            return ""
        return self.text[self.offsets[start][0] : self.offsets[stop - 1][1]]


@dataclass(frozen=True)
class Predicate:
    """One predicate of a sentence and its roles, as BIO tags (`B-V` marks the predicate).

    If arguments nest, tags cannot express them: they are in the spans `nested`, which are scored
    but not learned.
    """

    source: str
    tokens: Tokens
    predicate: int
    tags: Tokens | None
    nested: tuple[Span, ...] = ()

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return [self.tokens]


class Link(NamedTuple):
    """A GAP judgement: a pronoun, a name, and whether the two corefer."""

    pronoun: Range
    name: Range
    same: bool


@dataclass(frozen=True)
class Document:
    """The sentences of a document and its clusters of coreferent spans.

    Spans count the tokens of the whole document. `links` are the judged pairs of a GAP snippet;
    only their spans are then candidates.
    """

    source: str
    id: str
    tokens_of: tuple[Tokens, ...]
    clusters: tuple[tuple[Range, ...], ...] | None
    links: tuple[Link, ...] = field(default=())

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return list(self.tokens_of)


Example = Tagged | Classified | Pair | Question | Predicate | Document


def length(example: Example) -> int:
    """Return the number of tokens of an example; examples of similar length share a batch."""
    return sum(map(len, example.sentences))


def attention(example: Example) -> int:
    """Return the number of token pairs in an example's attention matrix, 0 if its model has
    none."""
    match example:
        case Classified() | Question():
            return len(example.tokens) ** 2
        case Pair():
            return max(len(example.premise), len(example.hypothesis)) ** 2
    return 0


def distinct(examples: Sequence[Example]) -> list[Tokens]:
    """Return the distinct non-empty token lists of examples, in the order of first occurrence."""
    return list(dict.fromkeys(s for example in examples for s in example.sentences if s))


def learnable(examples: Sequence[Example]) -> list[Example]:
    """Return the examples that have text and labels to learn from; the others can only be
    scored."""
    return [example for example in examples if all(example.sentences) and _gold(example)]


def _gold(example: Example) -> bool:
    match example:
        case Tagged() | Predicate():
            return example.tags is not None
        case Classified() | Pair():
            return example.label is not None
        case Question():
            return example.answer is not None
        case Document():
            return example.clusters is not None
