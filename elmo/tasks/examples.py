"""The examples of tasks: one record type per kind of task, and labelled spans.

Spans are half-open: tokens `start` to `stop - 1`. `source` is the file and line of an example, for
error messages. Labels that an unlabelled example lacks are None.

The names of these classes and their fields are part of the digests of a task's data: do not rename
them.
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


class OneText:
    """The base of examples of one text."""

    tokens: Tokens

    @property
    def sentences(self) -> list[Tokens]:
        """Return the token lists that the model needs vectors for."""
        return [self.tokens]


@dataclass(frozen=True)
class Tagged(OneText):
    """An example of tagging: a sentence with one tag per token (None: unlabelled); tags of spans
    are BIOES.

    `source` is its file and line, for messages. `text` is the text that the tokens of an unlabelled
    example were cut from, if there was one.
    """

    source: str
    tokens: Tokens
    tags: Tokens | None
    text: str | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Classified(OneText):
    """An example of classification: a text with one label (None: unlabelled). `source` is its file
    and line, for messages."""

    source: str
    tokens: Tokens
    label: str | None


@dataclass(frozen=True)
class Pair:
    """An example of sentence pairs: a premise and a hypothesis with one label (None: unlabelled).
    `source` is their file and line, for messages."""

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
    """An example of question answering: a question about a paragraph, `text`, which has the
    `tokens`.

    `source` is its place in its file, for messages. `offsets` are the character ranges of the
    paragraph's tokens. `answers` are the reference answers as text, `answer` the token span to
    learn (both None: unlabelled).
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

    def text_of(self, start: int, stop: int) -> str:
        """Return the text of tokens `start` to `stop - 1` of the paragraph, exactly as written; ""
        for none."""
        if start == stop:
            return ""
        return self.text[self.offsets[start][0] : self.offsets[stop - 1][1]]


@dataclass(frozen=True)
class Predicate(OneText):
    """An example of semantic roles: one predicate of a sentence, by the index of its token, and its
    roles, as BIO tags (None: unlabelled, or nested).

    `B-V` marks the predicate. If arguments nest, tags cannot express them: they are in the spans
    `nested`, which are scored but not learned. `source` and `text` are as in `Tagged`.
    """

    source: str
    tokens: Tokens
    predicate: int
    tags: Tokens | None
    nested: tuple[Span, ...] = ()
    text: str | None = field(default=None, repr=False, compare=False)


class Link(NamedTuple):
    """A question of the GAP corpus: the spans of a pronoun and a name, and whether they corefer."""

    pronoun: Range
    name: Range
    is_coreferent: bool


@dataclass(frozen=True)
class Document:
    """An example of coreference: the sentences of a document and its clusters of coreferent spans
    (None: unlabelled).

    Spans count the tokens of the whole document. `source` is its file and line, for messages.
    `links` are given for texts of the GAP corpus only: pairs of a pronoun and a name, whose spans
    alone can then be linked.
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


def token_count(example: Example) -> int:
    """Return the number of tokens of an example, by which batches are sorted."""
    return sum(map(len, example.sentences))


def attention_pairs(example: Example) -> int:
    """Return the number of token pairs in an example's attention matrix, a measure of memory.

    It is 0 if its model has no attention.
    """
    match example:
        case Classified() | Question():
            return len(example.tokens) ** 2
        case Pair():
            return max(len(example.premise), len(example.hypothesis)) ** 2
    return 0


def distinct_sentences(examples: Sequence[Example]) -> list[Tokens]:
    """Return the distinct non-empty token lists of all examples, which are those to embed, in order
    of first occurrence."""
    return list(dict.fromkeys(s for example in examples for s in example.sentences if s))


def text_groups(examples: Sequence[Example]) -> list[int]:
    """Return a number for each example, equal for those that share a text: the questions on a
    paragraph, the hypotheses of a premise, the predicates of a sentence."""
    numbers: dict[object, int] = {}
    texts = [e.tokens_of if isinstance(e, Document) else e.sentences[0] for e in examples]
    return [numbers.setdefault(text, len(numbers)) for text in texts]


def learnable_examples(examples: Sequence[Example]) -> list[Example]:
    """Return the examples that can be trained on: those with text and labels.

    The others can only be scored or predicted.
    """
    return [example for example in examples if all(example.sentences) and has_gold(example)]


def has_gold(example: Example) -> bool:
    """Tell whether an example has a label, or whatever its kind of task learns."""
    match example:
        case Tagged() | Predicate():
            return example.tags is not None
        case Classified() | Pair():
            return example.label is not None
        case Question():
            return example.answer is not None
        case Document():
            return example.clusters is not None
