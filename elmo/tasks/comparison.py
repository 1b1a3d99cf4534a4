"""Compare trained tasks: the scores of each seed on a labelled file, means, gains and intervals."""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from elmo.tasks.examples import distinct_sentences, text_groups
from elmo.tasks.formats.fields import ExampleSet
from elmo.tasks.label_scores import Answer, label_scores
from elmo.tasks.metrics import Tally, interval_over_seeds, main_score, paired_bootstrap, score_order
from elmo.tasks.record import read_curve, read_task_record
from elmo.tasks.task import Task, check_same_tags
from elmo.tasks.vectors import Vectors, build_sentence_store

NON_SCORES = ("epoch", "loss", "lr")  # the figures of an epoch that are not scores


def evaluate_seeds(
    folder: Path, example_set: ExampleSet, *, device: str = "cpu", work: Path | None = None
) -> tuple[list[Tally], dict[str, Any]]:
    """Return the tally of each seed of the trained task in `folder` on `example_set`, in the order
    of the record's `seeds`. Also return the scores by label (`label_scores`) of all seeds' answers.

    Each sentence is embedded once. The folder `work`, if given, keeps the vectors for later calls.
    """
    record = read_task_record(folder)
    check_same_tags(example_set, record.scheme)
    tallies: list[Tally] = []
    all_answers: list[Answer] = []
    with TemporaryDirectory() if work is None else nullcontext(work) as store_folder:
        vectors: Vectors | None = None
        if record.settings.elmo == "frozen":
            vectors = build_sentence_store(
                distinct_sentences(example_set.examples),
                model=folder / "model",
                work=Path(store_folder),
                layers=record.settings.layers,
                device=device,
            )
        for seed in record.seeds:
            task = Task.load(folder, seed=seed, device=device, vectors=vectors)
            answers = list(task.answer(example_set.examples))
            all_answers += answers
            tally = task.model.tally(example_set.examples, [guess for _, (guess, _) in answers])
            tally.groups = text_groups(example_set.examples)
            tallies.append(tally)
    return tallies, label_scores(all_answers, marks_spans=record.scheme != "plain")


def mean_over_seeds(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each score over the seeds, the main score first.

    `scores` has the scores of each seed, by name. With several seeds, the standard deviation of the
    main score is added, as `f1_sd` for `f1`.
    """
    names = sorted((name for name in scores[0] if name != "epoch"), key=score_order)
    means = {name: statistics.fmean(seed_scores[name] for seed_scores in scores) for name in names}
    if len(scores) > 1:
        means[f"{names[0]}_sd"] = statistics.stdev(seed_scores[names[0]] for seed_scores in scores)
    return means


def gain_of(tallies: Sequence[Tally], baseline_tallies: Sequence[Tally]) -> dict[str, float | None]:
    """Return the mean gain in the first score of `tallies` over `baseline_tallies`, with 95%
    intervals.

    Both have a tally for each seed. One interval is over the seeds (Student's t; None for one
    seed), the other over the texts of the test file (paired bootstrap).
    """
    scores = [
        [main_score(tally.scores()) for tally in side] for side in (tallies, baseline_tallies)
    ]
    gains = [score - baseline for score, baseline in zip(*scores, strict=True)]
    low, high = interval_over_seeds(gains) or (None, None)
    bootstrap_low, bootstrap_high = paired_bootstrap(tallies, baseline_tallies)
    return {
        "gain": statistics.fmean(gains),
        "gain_low": low,
        "gain_high": high,
        "gain_test_low": bootstrap_low,
        "gain_test_high": bootstrap_high,
    }


def best_by_epoch(folder: Path) -> list[list[float]]:
    """Return, for each seed of a trained task, the best main score on dev up to each epoch."""
    curves = []
    for seed in read_task_record(folder).seeds:
        best_score, curve = -1.0, []
        for figures in read_curve(folder, seed):
            metric = min((name for name in figures if name not in NON_SCORES), key=score_order)
            best_score = max(best_score, figures[metric])
            curve.append(best_score)
        curves.append(curve)
    return curves


def seeds_still_improving(folder: Path) -> list[int]:
    """Return the seeds of a trained task whose best epoch is the last, number `epochs`."""
    record = read_task_record(folder)
    return [
        seed
        for seed in record.seeds
        if record.scores[str(seed)].get("epoch") == record.settings.epochs
    ]
