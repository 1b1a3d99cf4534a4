"""Scores by label: precision, recall, F1 and support, confusions, and calibration. A scored item is
the label of an example, the tag of a token, a span or an argument.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from elmo.tasks.examples import Classified, Example, Pair, Predicate, Span, Tagged
from elmo.tasks.metrics import precision_recall_f1, predicate_arguments
from elmo.tasks.schemes import lenient_spans
from elmo.tasks.tagging import bioes_spans

MAX_CONFUSION_LABELS = 12  # with more labels, confusions are left out
BIN_COUNT = 10  # bins of scores between 0 and 1, for calibration

Answer = tuple[Example, tuple[Any, Any]]  # an example; its prediction and scores


def label_scores(answers: Sequence[Answer], *, marks_spans: bool) -> dict[str, Any]:
    """Return the scores by label of answered examples; {} if the task has no labels.

    `labels` has the precision, recall, F1 and support of each label, `macro` their means, and
    `micro` the scores over all items. `confusion` counts the predictions for each label, if each
    item has one label and there are few labels. If each example has one label, `calibration` has
    the mean score of the predictions, their accuracy, and the calibration `error` over ten bins.
    `marks_spans` says whether the tags mark spans.
    """
    correct_counts, predicted_counts, gold = Counter[str](), Counter[str](), Counter[str]()
    confusion: dict[str, Counter[str]] = defaultdict(Counter)
    for example, (prediction, _) in answers:
        gold_items, predicted_items = _label_items(example, prediction, marks_spans)
        gold.update(label for *_, label in gold_items)
        predicted_counts.update(label for *_, label in predicted_items)
        correct_counts.update(label for *_, label in set(gold_items) & set(predicted_items))
        if not marks_spans and not isinstance(example, Predicate):
            for (*_, gold_label), (*_, guess) in zip(gold_items, predicted_items, strict=True):
                confusion[gold_label][guess] += 1
    labels = sorted(gold | predicted_counts)
    if not labels:
        return {}
    scores_by_label = {
        label: precision_recall_f1(correct_counts[label], predicted_counts[label], gold[label])
        | {"support": gold[label]}
        for label in labels
    }
    totals = (correct_counts.total(), predicted_counts.total(), gold.total())
    report: dict[str, Any] = {
        "labels": scores_by_label,
        "macro": {
            name: fmean(scores[name] for scores in scores_by_label.values())
            for name in ("f1", "precision", "recall")
        },
        "micro": precision_recall_f1(*totals),
    }
    if confusion and len(labels) <= MAX_CONFUSION_LABELS:
        report["confusion"] = {label: dict(confusion[label]) for label in labels}
    if calibration := _compute_calibration(answers):
        report["calibration"] = calibration
    return report


def _label_items(
    example: Example, prediction: Any, marks_spans: bool
) -> tuple[Sequence[tuple[Any, ...]], Sequence[tuple[Any, ...]]]:
    """Return the items of an example and of its prediction, each with its label last."""
    match example:
        case Classified() | Pair():
            return [(example.label,)], [(prediction,)]
        case Tagged():
            tags = example.tags or ()
            if marks_spans:
                return bioes_spans(tags), bioes_spans(prediction)
            return list(enumerate(tags)), list(enumerate(prediction))
        case Predicate():
            gold_spans = example.nested or lenient_spans(example.tags or ())
            return _list_arguments(gold_spans), _list_arguments(lenient_spans(prediction))
    return (), ()


def _list_arguments(spans: Iterable[Span]) -> list[tuple[Any, ...]]:
    return [(ranges, label) for label, ranges in predicate_arguments(spans)]


def _compute_calibration(answers: Sequence[Answer]) -> dict[str, float]:
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BIN_COUNT)]
    for example, (prediction, scores) in answers:
        if isinstance(example, Classified | Pair):
            score = max(scores)
            score_bin = bins[min(BIN_COUNT - 1, int(score * BIN_COUNT))]
            score_bin.append((score, prediction == example.label))
    scored_answers = [scored_answer for score_bin in bins for scored_answer in score_bin]
    if not scored_answers:
        return {}
    gaps = [
        abs(fmean(score for score, _ in score_bin) - fmean(is_right for _, is_right in score_bin))
        * len(score_bin)
        for score_bin in bins
        if score_bin
    ]
    return {
        "mean_score": fmean(score for score, _ in scored_answers),
        "accuracy": fmean(is_right for _, is_right in scored_answers),
        "error": sum(gaps) / len(scored_answers),
    }
