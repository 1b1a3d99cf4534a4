"""Toy problems that each task model must solve, over vectors that are the same for a word always.

The words are made up; what is to be learned follows from them alone.
"""

import hashlib
import random
from collections.abc import Sequence

import numpy as np

from elmo.data.arrays import Floats
from elmo.tasks.examples import (
    Classified,
    Document,
    Example,
    Pair,
    Predicate,
    Question,
    Tagged,
    Tokens,
)

NAMES = ["ann", "bob", "cat", "dan", "eve", "fay"]
VERBS = ["sees", "hears", "likes", "wants"]
FILLERS = ["the", "a", "very", "old", "red", "so", "big"]
LAYERS, DIM = 2, 16


def word_vectors(sentences: Sequence[Tokens]) -> list[Floats]:
    """Random layers that follow from the word."""
    return [np.stack([_vector(token) for token in tokens], 1) for tokens in sentences]


def _vector(token: str) -> Floats:
    seed = int.from_bytes(hashlib.sha256(token.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).standard_normal((LAYERS, DIM)).astype(np.float32)


def examples(kind: str, count: int, seed: int = 0) -> list[Example]:
    """Examples of a toy problem."""
    draw = random.Random(f"{kind} {seed}")
    make = {
        "tagging": _tagged,
        "classification": _classified,
        "pairs": _pair,
        "questions": _question,
        "roles": _predicate,
        "coreference": _document,
    }[kind]
    return [make(draw, number) for number in range(count)]


def _tagged(draw: random.Random, number: int) -> Tagged:
    """A name alone is a person; a name before "inc" is part of an organisation."""
    tokens: list[str] = []
    tags: list[str] = []
    for _ in range(draw.randrange(2, 5)):
        tokens.append(draw.choice(FILLERS))
        tags.append("O")
        tokens.append(draw.choice(NAMES))
        if draw.random() < 0.5:
            tokens.append("inc")
            tags += ["B-ORG", "E-ORG"]
        else:
            tags.append("S-PER")
    return Tagged(f"toy:{number}", tuple(tokens), tuple(tags))


def _classified(draw: random.Random, number: int) -> Classified:
    """Whether a name stands right before "not"."""
    tokens = draw.choices(FILLERS, k=3)
    label = draw.choice(["yes", "no"])
    pieces = (
        [[draw.choice(NAMES), "not"], ["so"]]
        if label == "yes"
        else [["so", "not"], [draw.choice(NAMES)]]
    )
    draw.shuffle(pieces)
    return Classified(f"toy:{number}", tuple(tokens + [t for p in pieces for t in p]), label)


def _pair(draw: random.Random, number: int) -> Pair:
    """Whether the hypothesis names someone whom the premise names."""
    present = draw.sample(NAMES, 2)
    absent = [name for name in NAMES if name not in present]
    label = draw.choice(["yes", "no"])
    chosen = draw.choice(present if label == "yes" else absent)
    premise = (present[0], draw.choice(VERBS), present[1])
    return Pair(f"toy:{number}", premise, (draw.choice(FILLERS), chosen), label)


def _question(draw: random.Random, number: int) -> Question:
    """Which two words follow the name asked for."""
    names = draw.sample(NAMES, 3)
    tokens: list[str] = []
    for name in names:
        tokens += [name, draw.choice(FILLERS), draw.choice(VERBS)]
    asked = draw.randrange(3)
    text = " ".join(tokens)
    offsets, start = [], 0
    for token in tokens:
        offsets.append((start, start + len(token)))
        start += len(token) + 1
    span = (3 * asked + 1, 3 * asked + 3)
    answer = text[offsets[span[0]][0] : offsets[span[1] - 1][1]]
    return Question(
        f"toy:{number}",
        str(number),
        text,
        tuple(tokens),
        tuple(offsets),
        (names[asked], "?"),
        (answer,),
        span,
    )


def _predicate(draw: random.Random, number: int) -> Predicate:
    """Of two clauses only the predicate's has roles: who does it, and to whom (two words)."""
    clauses = [
        [draw.choice(NAMES), draw.choice(VERBS), draw.choice(FILLERS), draw.choice(NAMES)]
        for _ in range(2)
    ]
    chosen = draw.randrange(2)
    tags = ["O"] * 8
    tags[4 * chosen : 4 * chosen + 4] = ["B-A0", "B-V", "B-A1", "I-A1"]
    tokens = tuple(token for clause in clauses for token in clause)
    return Predicate(f"toy:{number}", tokens, 4 * chosen + 1, tuple(tags))


def _document(draw: random.Random, number: int) -> Document:
    """A name said twice is one person; other words are nobody."""
    names = draw.sample(NAMES, 3)
    said = [*names, *names[:2]]
    draw.shuffle(said)
    sentences = [(name, draw.choice(FILLERS), draw.choice(FILLERS)) for name in said]
    clusters = tuple(
        tuple((3 * k, 3 * k + 1) for k, other in enumerate(said) if other == name)
        for name in names[:2]
    )
    return Document(f"toy:{number}", str(number), tuple(sentences), tuple(sorted(clusters)))
