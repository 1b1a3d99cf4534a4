"""Readers of texts with one label, and of sentence pairs: TSV, CSV and JSON lines."""

from collections import Counter

from elmo.tasks.examples import Classified, Example, Pair
from elmo.tasks.readers.fields import (
    Labelled,
    Request,
    label_of,
    records,
    tokens_of,
)


def classified(request: Request) -> Labelled:
    """Read texts with one label: the fields `text` (or `tokens`) and `label`."""
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in records(request, ("text", "label")):
        tokens = tokens_of(request, record, number)
        label = label_of(request, record, number)
        if not tokens or label == "":
            counts["dropped_empty"] += 1
            continue
        examples.append(Classified(f"{request.path}:{number}", tokens, label))
    counts["texts"] = len(examples)
    return Labelled(examples, dict(counts))


def paired(request: Request) -> Labelled:
    """Read sentence pairs: the fields `premise`, `hypothesis` and `label`.

    Pairs without an agreed label are dropped: SNLI marks them "-", Hugging Face's copy -1.
    """
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in records(request, ("premise", "hypothesis", "label")):
        premise = tokens_of(request, record, number, "premise")
        hypothesis = tokens_of(request, record, number, "hypothesis")
        label = label_of(request, record, number)
        if label in ("-", "-1"):
            counts["dropped_without_agreed_label"] += 1
        elif not premise or not hypothesis or label == "":
            counts["dropped_empty"] += 1
        else:
            examples.append(Pair(f"{request.path}:{number}", premise, hypothesis, label))
    counts["pairs"] = len(examples)
    return Labelled(examples, dict(counts))
