"""Readers of texts with one label, and of sentence pairs: TSV, CSV and JSON lines."""

from collections import Counter

from elmo.tasks.examples import Classified, Example, Pair
from elmo.tasks.formats.fields import ExampleSet, ReadRequest, read_label, read_records, read_tokens


def read_classified(request: ReadRequest) -> ExampleSet:
    """Read texts with one label each: the fields `text` (or `tokens`) and `label`.

    Texts without tokens or with an empty label are dropped and counted.
    """
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in read_records(request, ("text", "label")):
        tokens = read_tokens(request, record, number)
        label = read_label(request, record, number)
        if not tokens or label == "":
            counts["dropped_empty"] += 1
            continue
        examples.append(Classified(f"{request.path}:{number}", tokens, label))
    counts["texts"] = len(examples)
    return ExampleSet(examples, dict(counts))


def read_pairs(request: ReadRequest) -> ExampleSet:
    """Read sentence pairs: the fields `premise`, `hypothesis` and `label`.

    Pairs with an empty field or without an agreed label ("-" in SNLI, -1 in Hugging Face's copy)
    are dropped and counted.
    """
    examples: list[Example] = []
    counts: Counter[str] = Counter()
    for number, record in read_records(request, ("premise", "hypothesis", "label")):
        premise = read_tokens(request, record, number, "premise")
        hypothesis = read_tokens(request, record, number, "hypothesis")
        label = read_label(request, record, number)
        if label in ("-", "-1"):
            counts["dropped_without_agreed_label"] += 1
        elif not premise or not hypothesis or label == "":
            counts["dropped_empty"] += 1
        else:
            examples.append(Pair(f"{request.path}:{number}", premise, hypothesis, label))
    counts["pairs"] = len(examples)
    return ExampleSet(examples, dict(counts))
