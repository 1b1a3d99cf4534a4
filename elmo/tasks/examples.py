"""Examples that tasks learn from: one record for each kind, and the spans inside them.

Spans are half-open: tokens `start` to `stop - 1`. `source` is the file and line of an example, for
messages. What an unlabelled example lacks is None.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Tokens = tuple[str, ...]


class Span(NamedTuple):
    """Tokens `start` to `stop - 1` and what they are."""

    start: int
    stop: int
    label: str


Range = tuple[int, int]


@dataclass(frozen=True)
class Tagged:
    """A sentence with a tag for each token; span tags are in BIOES."""

    source: str
    tokens: Tokens
    tags: Tokens | None

    @property
    def sentences(self) -> list[Tokens]:
        """The token lists that need vectors."""
        return [self.tokens]


@dataclass(frozen=True)
class Classified:
    """A text with one label."""

    source: str
    tokens: Tokens
    label: str | None

    @property
    def sentences(self) -> list[Tokens]:
        """The token lists that need vectors."""
        return [self.tokens]


@dataclass(frozen=True)
class Pair:
    """Two sentences with one label."""

    source: str
    premise: Tokens
    hypothesis: Tokens
    label: str | None

    @property
    def sentences(self) -> list[Tokens]:
        """The token lists that need vectors."""
        return [self.premise, self.hypothesis]


@dataclass(frozen=True)
class Question:
    """A question on a paragraph. `offsets` are the characters of each token of the paragraph.

    `answers` are the reference answers as text; `answer` is the token span to learn.
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
        """The token lists that need vectors: a paragraph is read as one sequence."""
        return [self.tokens, self.question]

    def cut(self, start: int, stop: int) -> str:
        """The text of tokens `start` to `stop - 1`, exactly as it stands in the paragraph."""
        if start == stop:
            return ""
        return self.text[self.offsets[start][0] : self.offsets[stop - 1][1]]


@dataclass(frozen=True)
class Predicate:
    """One predicate of a sentence and its roles, as BIO tags (`B-V` is the predicate).

    Where arguments nest, no tags hold them: they are the spans `nested`, to be scored, not learned.
    """

    source: str
    tokens: Tokens
    predicate: int
    tags: Tokens | None
    nested: tuple[Span, ...] = ()

    @property
    def sentences(self) -> list[Tokens]:
        """The token lists that need vectors."""
        return [self.tokens]


class Link(NamedTuple):
    """A pronoun, a name, and whether they are the same (GAP)."""

    pronoun: Range
    name: Range
    same: bool


@dataclass(frozen=True)
class Document:
    """Sentences and clusters of coreferent spans; spans count the document's tokens.

    `links` are the judged pairs of a GAP snippet; candidates are then those spans alone.
    """

    source: str
    id: str
    tokens_of: tuple[Tokens, ...]
    clusters: tuple[tuple[Range, ...], ...] | None
    links: tuple[Link, ...] = field(default=())

    @property
    def sentences(self) -> list[Tokens]:
        """The token lists that need vectors."""
        return list(self.tokens_of)


Example = Tagged | Classified | Pair | Question | Predicate | Document


def length(example: Example) -> int:
    """Return how many tokens an example has: batches are of examples of like length."""
    return sum(map(len, example.sentences))


def attention(example: Example) -> int:
    """The pairs of tokens that an example's model attends over, once padded; 0: it does not."""
    match example:
        case Classified() | Question():
            return len(example.tokens) ** 2
        case Pair():
            return max(len(example.premise), len(example.hypothesis)) ** 2
    return 0


def distinct(examples: Sequence[Example]) -> list[Tokens]:
    """The distinct token lists of examples, in the order they first occur."""
    return list(dict.fromkeys(s for example in examples for s in example.sentences if s))


def learnable(examples: Sequence[Example]) -> list[Example]:
    """The examples that have what a model learns; of others it can only be scored."""
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
