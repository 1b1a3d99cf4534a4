"""The metrics of the six tasks, each by its standard definition.

A metric counts hits and totals per test unit (a sentence, pair, question, predicate or document).
Scores are computed from the sums, so a `Tally` can be scored on any sample of units. Spans are
half-open.

Shapes: U test units (or texts with all their units), N counts of all tallies side by side.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from elmo.tasks.examples import Link, Range, Span

Clusters = Sequence[Sequence[Range]]
Scores = dict[str, float]
Metric = Literal["accuracy", "spans", "tags", "answers", "coreference", "links"]
MAIN_METRICS = ("f1", "exact_match", "accuracy")  # the first that a task has is its main score
BOOTSTRAP_DRAWS = 2000
MAX_COUNTS = 12  # the most counts that a unit has in any metric


class Tally(msgspec.Struct, forbid_unknown_fields=True):
    """The counts of a metric for each test unit: a sentence, pair, question, predicate or document.

    `counts` has a row per unit, whose columns depend on the `metric`. Scores are computed from the
    sum of the rows. `groups`, if given, has a number for each unit, equal for units that share a
    text; the bootstrap draws these together.
    """

    metric: Metric
    counts: Sequence[tuple[float, ...]]
    groups: Sequence[int] = ()

    def scores(self) -> Scores:
        """Return the scores over all units by name, the metric's main score first."""
        return _SCORES[self.metric](self.array().sum(0).tolist())

    def array(self) -> npt.NDArray[np.float64]:
        """Return the counts as a float64 array (units, counts)."""
        return np.array(self.counts or np.zeros((0, MAX_COUNTS)), np.float64)


def paired_bootstrap(
    tallies: Sequence[Tally], baseline_tallies: Sequence[Tally]
) -> tuple[float, float]:
    """Return the 95% interval of the main score of `tallies` minus that of `baseline_tallies`, by
    paired bootstrap.

    Each side has one tally per seed, all over the same test units. Each draw samples the texts with
    replacement, together with their units, and averages the scores over seeds. The random seed is
    fixed, so the result is reproducible.
    """
    all_tallies = [*tallies, *baseline_tallies]
    counts_UN = np.concatenate([tally.array() for tally in all_tallies], 1)
    if groups := all_tallies[0].groups:
        text_counts_UN = np.zeros((max(groups) + 1, counts_UN.shape[1]))
        np.add.at(text_counts_UN, np.array(groups), counts_UN)
        counts_UN = text_counts_UN
    units, width = len(counts_UN), counts_UN.shape[1] // len(all_tallies)
    scores_of_sums = _SCORES[all_tallies[0].metric]
    generator = np.random.default_rng(0)
    gains = np.empty(BOOTSTRAP_DRAWS)
    for draw in range(BOOTSTRAP_DRAWS):
        draws_U = np.bincount(generator.integers(units, size=units), minlength=units)
        sums = (draws_U @ counts_UN).reshape(len(all_tallies), width).tolist()
        scores = [main_score(scores_of_sums(seed_sums)) for seed_sums in sums]
        gains[draw] = fmean(scores[: len(tallies)]) - fmean(scores[len(tallies) :])
    low, high = np.quantile(gains, (0.025, 0.975))
    return float(low), float(high)


def interval_over_seeds(scores: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95% confidence interval of the mean of `scores`, one per seed; None for a
    single seed."""
    if len(scores) < 2:
        return None
    from scipy.stats import t

    half_width = float(t.ppf(0.975, len(scores) - 1)) * stdev(scores) / math.sqrt(len(scores))
    return fmean(scores) - half_width, fmean(scores) + half_width


def main_score(scores: Scores) -> float:
    """Return the score by which epochs and seeds are compared: the first one."""
    return next(iter(scores.values()))


def score_order(name: str) -> tuple[int, str]:
    """Return the sort key of a score's name: `MAIN_METRICS` first, the others by name."""
    return MAIN_METRICS.index(name) if name in MAIN_METRICS else len(MAIN_METRICS), name


_PUNCTUATION = set(string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def tally_accuracy(gold: Sequence[object], predicted: Sequence[object]) -> Tally:
    """Count the correct predictions; a unit is an example."""
    counts = [(float(label == guess), 1.0) for label, guess in zip(gold, predicted, strict=True)]
    return Tally("accuracy", counts)


def tally_tag_accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Tally:
    """Count the correct tags; a unit is a sentence."""
    counts = [
        (float(sum(tag == guess for tag, guess in zip(*tags, strict=True))), float(len(tags[0])))
        for tags in zip(gold, predicted, strict=True)
    ]
    return Tally("accuracy", counts)


def precision_recall_f1(correct: float, predicted: float, gold: float) -> Scores:
    """Return F1, precision and recall by name, from the numbers of correct, predicted and gold
    items.

    A score without a denominator is 0.
    """
    precision = correct / predicted if predicted else 0.0
    recall = correct / gold if gold else 0.0
    total = precision + recall
    return {
        "f1": 2 * precision * recall / total if total else 0.0,
        "precision": precision,
        "recall": recall,
    }


def tally_span_f1(gold: Sequence[Iterable[object]], predicted: Sequence[Iterable[object]]) -> Tally:
    """Tally F1 over exact spans and labels, micro-averaged as in conlleval and seqeval; a unit is a
    sentence. For semantic roles, a unit is a predicate with its `predicate_arguments`.
    """
    counts = []
    for gold_set, guesses in zip(map(set, gold), map(set, predicted), strict=True):
        counts.append((float(len(gold_set & guesses)), float(len(guesses)), float(len(gold_set))))
    return Tally("spans", counts)


def predicate_arguments(spans: Iterable[Span]) -> set[tuple[str, tuple[Range, ...]]]:
    """Return the arguments of one predicate, each with its label and ranges, as srl-eval.pl counts
    them; `spans` are the labelled spans of its sentence.

    C-X continues the last X before it, as a further range of that argument. If no X is before it,
    C-X is an ordinary X. The predicate itself (V and C-V) is given, so it is not counted.
    """
    arguments: list[tuple[str, list[Range]]] = []
    for start, stop, label in sorted(spans):
        name = label.removeprefix("C-")
        same_arguments = [ranges for label_before, ranges in arguments if label_before == name]
        if label.startswith("C-") and same_arguments:
            same_arguments[-1].append((start, stop))
        else:
            arguments.append((name, [(start, stop)]))
    return {(name, tuple(ranges)) for name, ranges in arguments if name != "V"}


def normalize_answer(text: str) -> str:
    """Normalise an answer as SQuAD does: lower case, no ASCII punctuation, no articles, single
    spaces."""
    text_without_marks = "".join(c for c in text.lower() if c not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text_without_marks).split())


def answer_f1(predicted: str, reference: str) -> float:
    """Return the F1 over the words of two answers, after `normalize_answer`."""
    words, gold_words = normalize_answer(predicted).split(), normalize_answer(reference).split()
    overlap = sum((Counter(words) & Counter(gold_words)).values())
    return precision_recall_f1(overlap, len(words), len(gold_words))["f1"]


def tally_answers(references: Sequence[Sequence[str]], predicted: Sequence[str]) -> Tally:
    """Tally F1 and exact match, each the best over the references; a unit is a question."""
    counts = []
    for answers, guess in zip(references, predicted, strict=True):
        f1 = max(answer_f1(guess, answer) for answer in answers)
        exact_match = max(normalize_answer(guess) == normalize_answer(answer) for answer in answers)
        counts.append((f1, float(exact_match), 1.0))
    return Tally("answers", counts)


def tally_coreference(gold: Sequence[Clusters], predicted: Sequence[Clusters]) -> Tally:
    """Tally MUC, B³, CEAF-φ4 and the mean of their F1s, given the clusters of each document; a unit
    is a document."""
    counts = []
    for gold_clusters, clusters in zip(gold, predicted, strict=True):
        similarity = _ceaf_similarity(gold_clusters, clusters)
        muc = (*_muc(clusters, gold_clusters), *_muc(gold_clusters, clusters))
        b_cubed = (*_b_cubed(clusters, gold_clusters), *_b_cubed(gold_clusters, clusters))
        ceaf = (similarity, float(len(clusters)), similarity, float(len(gold_clusters)))
        counts.append((*muc, *b_cubed, *ceaf))
    return Tally("coreference", counts)


def tally_links(gold: Sequence[Sequence[Link]], predicted: Sequence[Clusters]) -> Tally:
    """Tally F1 over the pairs of a pronoun and a name that GAP asks about, given the predicted
    clusters of each snippet; a unit is a snippet."""
    counts = []
    for links, clusters in zip(gold, predicted, strict=True):
        gold_answers = [corefers for *_, corefers in links]
        guesses = [
            any(pronoun in cluster and name in cluster for cluster in clusters)
            for pronoun, name, _ in links
        ]
        correct = sum(a and b for a, b in zip(gold_answers, guesses, strict=True))
        counts.append((float(correct), float(sum(guesses)), float(sum(gold_answers))))
    return Tally("links", counts)


def _score_accuracy(sums: Sequence[float]) -> Scores:
    return {"accuracy": sums[0] / max(1.0, sums[1])}


def _score_answers(sums: Sequence[float]) -> Scores:
    count = max(1.0, sums[2])
    return {"f1": sums[0] / count, "exact_match": sums[1] / count}


def _score_coreference(sums: Sequence[float]) -> Scores:
    scores: Scores = {}
    for k, name in enumerate(("muc", "b_cubed", "ceaf_e")):
        p_sum, predicted, r_sum, gold = sums[4 * k : 4 * k + 4]
        precision = p_sum / predicted if predicted else 0.0
        recall = r_sum / gold if gold else 0.0
        total = precision + recall
        scores[f"{name}_f1"] = 2 * precision * recall / total if total else 0.0
    return {"f1": sum(scores.values()) / 3, **scores}


_SCORES: dict[Metric, Callable[[Sequence[float]], Scores]] = {
    "accuracy": _score_accuracy,
    "spans": lambda sums: precision_recall_f1(*sums[:3]),
    "tags": lambda sums: {**precision_recall_f1(*sums[:3]), **_score_accuracy(sums[3:])},
    "answers": _score_answers,
    "coreference": _score_coreference,
    "links": lambda sums: precision_recall_f1(*sums[:3]),
}


def _muc(clusters: Clusters, other_clusters: Clusters) -> tuple[float, float]:
    """Return how many links of `clusters` are also in `other_clusters`, and how many there are."""
    cluster_by_span = {span: k for k, cluster in enumerate(other_clusters) for span in cluster}
    shared_links = links = 0
    for cluster in clusters:
        parts = {cluster_by_span.get(mention, (mention,)) for mention in cluster}
        shared_links, links = shared_links + len(cluster) - len(parts), links + len(cluster) - 1
    return shared_links, links


def _b_cubed(clusters: Clusters, other_clusters: Clusters) -> tuple[float, float]:
    cluster_by_span = {span: k for k, cluster in enumerate(other_clusters) for span in cluster}
    overlap = mentions = 0.0
    for cluster in clusters:
        overlaps = Counter(cluster_by_span[span] for span in cluster if span in cluster_by_span)
        overlap += sum(count**2 for count in overlaps.values()) / len(cluster)
        mentions += len(cluster)
    return overlap, mentions


def _ceaf_similarity(gold: Clusters, predicted: Clusters) -> float:
    """Return the sum of 2|a ∩ b| / (|a| + |b|) over the best one-to-one matching of clusters."""
    from scipy.optimize import linear_sum_assignment

    predicted_sets = [set(cluster) for cluster in predicted]
    gold_sets = [set(cluster) for cluster in gold]
    similarity = np.array(
        [[2 * len(a & b) / (len(a) + len(b)) for b in gold_sets] for a in predicted_sets],
        np.float64,
    ).reshape(len(predicted_sets), len(gold_sets))
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return float(similarity[rows, columns].sum())
