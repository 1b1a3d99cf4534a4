"""The metrics of the six tasks, by the field's own definitions. Counts are pooled over the corpus.

Spans are half-open. Shapes: none; plain Python, and numpy for the assignment of CEAF.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from elmo.tasks.examples import Link, Range, Span

Clusters = Sequence[Sequence[Range]]
Scores = dict[str, float]


def first_score(scores: Scores) -> float:
    """The score that chooses among epochs and seeds: the first."""
    return next(iter(scores.values()))


_PUNCTUATION = set(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """The share that is right."""
    return sum(a == b for a, b in zip(gold, predicted, strict=True)) / max(1, len(gold))


def f1_of(right: float, predicted: float, gold: float) -> Scores:
    """Precision, recall and F1 from counts; 0 where there is nothing to divide by."""
    precision = right / predicted if predicted else 0.0
    recall = right / gold if gold else 0.0
    both = precision + recall
    return {
        "f1": 2 * precision * recall / both if both else 0.0,
        "precision": precision,
        "recall": recall,
    }


def span_f1(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> Scores:
    """Exact span and label, micro-averaged: what conlleval and seqeval's default report."""
    right = guessed = known = 0
    for gold_spans, predicted_spans in zip(gold, predicted, strict=True):
        ours, theirs = set(predicted_spans), set(gold_spans)
        right, guessed, known = right + len(ours & theirs), guessed + len(ours), known + len(theirs)
    return f1_of(right, guessed, known)


def arguments(spans: Iterable[Span]) -> set[tuple[str, tuple[Range, ...]]]:
    """The arguments of one predicate as srl-eval.pl counts them.

    C-X continues the last X before it into one argument of several spans, and is an ordinary X
    where there is none. The predicate (V, with its C-V) is given, so it is no argument.
    """
    parts: list[tuple[str, list[Range]]] = []
    for start, stop, label in sorted(spans):
        name = label.removeprefix("C-")
        earlier = [ranges for other, ranges in parts if other == name]
        if label.startswith("C-") and earlier:
            earlier[-1].append((start, stop))
        else:
            parts.append((name, [(start, stop)]))
    return {(name, tuple(ranges)) for name, ranges in parts if name != "V"}


def role_f1(gold: Sequence[Iterable[Span]], predicted: Sequence[Iterable[Span]]) -> Scores:
    """F1 over the arguments of all predicates together."""
    right = guessed = known = 0
    for gold_spans, predicted_spans in zip(gold, predicted, strict=True):
        ours, theirs = arguments(predicted_spans), arguments(gold_spans)
        right, guessed, known = right + len(ours & theirs), guessed + len(ours), known + len(theirs)
    return f1_of(right, guessed, known)


def normalised_answer(text: str) -> str:
    """SQuAD's: lower case, without ASCII punctuation, without a, an and the, single spaces."""
    kept = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", kept).split())


def answer_f1(predicted: str, reference: str) -> float:
    """F1 over the words of two answers."""
    ours, theirs = normalised_answer(predicted).split(), normalised_answer(reference).split()
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return f1_of(shared, len(ours), len(theirs))["f1"]


def squad_scores(references: Sequence[Sequence[str]], predicted: Sequence[str]) -> Scores:
    """Exact match and F1: the best over a question's references, then the mean over questions."""
    exact = f1 = 0.0
    for answers, guess in zip(references, predicted, strict=True):
        exact += max(normalised_answer(guess) == normalised_answer(a) for a in answers)
        f1 += max(answer_f1(guess, a) for a in answers)
    count = max(1, len(predicted))
    return {"exact_match": exact / count, "f1": f1 / count}


def coreference_scores(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> Scores:
    """MUC, B³ and CEAF-φ4 over documents (counts pooled), and the mean of the three F1s."""
    totals = {"muc": [0.0] * 4, "b_cubed": [0.0] * 4, "ceaf_e": [0.0] * 4}
    for theirs, ours in zip(gold, predicted, strict=True):
        similarity = _ceaf_similarity(theirs, ours)
        for name, counts in (
            ("muc", (*_muc(ours, theirs), *_muc(theirs, ours))),
            ("b_cubed", (*_b_cubed(ours, theirs), *_b_cubed(theirs, ours))),
            ("ceaf_e", (similarity, len(ours), similarity, len(theirs))),
        ):
            totals[name] = [a + b for a, b in zip(totals[name], counts, strict=True)]
    scores: Scores = {}
    for name, (p, p_of, r, r_of) in totals.items():
        precision, recall = p / p_of if p_of else 0.0, r / r_of if r_of else 0.0
        both = precision + recall
        scores[f"{name}_f1"] = 2 * precision * recall / both if both else 0.0
    return {"f1": sum(scores.values()) / 3, **scores}


def link_scores(gold: Sequence[Sequence[Link]], predicted: Sequence[Clusters]) -> Scores:
    """GAP's F1: over pairs of a pronoun and a name, whether they are found the same."""
    right = guessed = known = 0
    for links, clusters in zip(gold, predicted, strict=True):
        for pronoun, name, same in links:
            linked = any(pronoun in cluster and name in cluster for cluster in clusters)
            right, guessed, known = right + (linked and same), guessed + linked, known + same
    return f1_of(right, guessed, known)


def _muc(clusters: Clusters, other: Clusters) -> tuple[float, float]:
    """How many links of `clusters` the other side keeps, and how many there are."""
    home = {mention: number for number, cluster in enumerate(other) for mention in cluster}
    kept = links = 0
    for cluster in clusters:
        parts = {home.get(mention, (mention,)) for mention in cluster}
        kept, links = kept + len(cluster) - len(parts), links + len(cluster) - 1
    return kept, links


def _b_cubed(clusters: Clusters, other: Clusters) -> tuple[float, float]:
    home = {mention: number for number, cluster in enumerate(other) for mention in cluster}
    shared = mentions = 0.0
    for cluster in clusters:
        overlaps = Counter(home[mention] for mention in cluster if mention in home)
        shared += sum(count**2 for count in overlaps.values()) / len(cluster)
        mentions += len(cluster)
    return shared, mentions


def _ceaf_similarity(gold: Clusters, predicted: Clusters) -> float:
    """The sum of 2|a ∩ b| / (|a| + |b|) over the best one-to-one matching of clusters."""
    ours = [set(cluster) for cluster in predicted]
    theirs = [set(cluster) for cluster in gold]
    similarity = np.array(
        [[2 * len(a & b) / (len(a) + len(b)) for b in theirs] for a in ours], np.float64
    ).reshape(len(ours), len(theirs))
    return best_assignment(similarity)


def best_assignment(gains: npt.NDArray[np.float64]) -> float:
    """The largest sum of entries with no two in one row or column (the Hungarian method)."""
    if gains.shape[0] > gains.shape[1]:
        gains = gains.T
    rows, columns = gains.shape
    cost = np.zeros((rows + 1, columns + 1))
    cost[1:, 1:] = -gains
    row_price, column_price = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, np.int64)  # the row matched to each column; column 0 is free
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        slack = np.full(columns + 1, np.inf)
        previous = np.zeros(columns + 1, np.int64)
        used = np.zeros(columns + 1, bool)
        while row_of[column]:
            used[column] = True
            reduced = cost[row_of[column]] - row_price[row_of[column]] - column_price
            better = ~used & (reduced < slack)
            slack[better], previous[better] = reduced[better], column
            nearest = int(np.where(used, np.inf, slack).argmin())
            step = slack[nearest]
            row_price[row_of[used]] += step
            column_price[used] -= step
            slack[~used] -= step
            column = nearest
        while column:
            row_of[column] = row_of[previous[column]]
            column = int(previous[column])
    return float(sum(gains[row_of[j] - 1, j - 1] for j in range(1, columns + 1) if row_of[j]))
