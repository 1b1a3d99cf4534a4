"""Metrics against published examples, other libraries' answers and cases done by hand."""

import itertools
import random

import numpy as np
import pytest

from elmo.tasks.comparison import mean_over_seeds
from elmo.tasks.examples import Link, Span
from elmo.tasks.metrics import (
    BOOTSTRAP_DRAWS,
    Tally,
    answer_f1,
    interval_over_seeds,
    normalize_answer,
    paired_bootstrap,
    predicate_arguments,
    tally_answers,
    tally_coreference,
    tally_links,
    tally_span_f1,
)
from elmo.tasks.schemes import lenient_spans, spans_of_tags, to_bio, to_bioes


def test_span_f1_counts_exact_spans_over_the_corpus() -> None:
    gold = [[Span(0, 2, "PER"), Span(4, 5, "LOC")], [Span(0, 1, "ORG")], []]
    guess = [[Span(0, 2, "PER"), Span(4, 5, "ORG")], [], [Span(1, 2, "PER")]]
    scores = tally_span_f1(gold, guess).scores()
    assert scores["precision"] == pytest.approx(1 / 3)
    assert scores["recall"] == pytest.approx(1 / 3)
    assert tally_span_f1([[]], [[]]).scores()["f1"] == 0.0


def test_span_f1_equals_that_of_seqeval() -> None:
    """The expected scores are those of seqeval 1.2.2."""
    draw = random.Random(0)
    choices = ["O", "B-A", "I-A", "B-B", "I-B"]
    gold = [draw.choices(choices, k=draw.randrange(1, 9)) for _ in range(200)]
    guess = [draw.choices(choices, k=len(tags)) for tags in gold]
    ours = tally_span_f1(
        [lenient_spans(t) for t in gold], [lenient_spans(t) for t in guess]
    ).scores()
    assert ours["f1"] == pytest.approx(0.2468239564428312)
    assert ours["precision"] == pytest.approx(0.2446043165467626)
    assert ours["recall"] == pytest.approx(0.2490842490842491)


def test_spans_and_tags_turn_into_each_other() -> None:
    draw = random.Random(1)
    for _ in range(200):
        cuts = sorted(draw.sample(range(12), draw.randrange(8)))
        marked = [Span(a, b, draw.choice("AB")) for a, b in itertools.pairwise(cuts)][::2]
        assert spans_of_tags(to_bio(marked, 12), "bio") == marked
        assert spans_of_tags(to_bioes(marked, 12), "bioes") == marked
        assert lenient_spans(to_bio(marked, 12)) == marked


def test_continued_arguments_are_one_and_the_predicate_is_none() -> None:
    marked = [
        Span(0, 1, "ARG1"),
        Span(1, 2, "V"),
        Span(2, 3, "C-ARG1"),
        Span(3, 4, "C-V"),
        Span(4, 5, "R-ARG1"),
        Span(5, 6, "C-ARG2"),
    ]
    assert predicate_arguments(marked) == {
        ("ARG1", ((0, 1), (2, 3))),
        ("R-ARG1", ((4, 5),)),
        ("ARG2", ((5, 6),)),
    }
    twice = [Span(0, 1, "A0"), Span(1, 2, "A0"), Span(2, 3, "C-A0")]
    assert predicate_arguments(twice) == {("A0", ((0, 1),)), ("A0", ((1, 2), (2, 3)))}
    arguments, verb = predicate_arguments(marked), predicate_arguments([Span(0, 1, "V")])
    half = tally_span_f1([arguments], [predicate_arguments(marked[:2])]).scores()
    assert half == {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    first_five = predicate_arguments(marked[:5])
    scores = tally_span_f1([arguments, verb], [first_five, verb]).scores()
    assert (scores["precision"], scores["recall"]) == (1.0, pytest.approx(2 / 3))


def test_squad_normalisation_and_scores() -> None:
    assert normalize_answer("The  cat's, AN  “owl”!") == "cats “owl”"
    assert normalize_answer("a") == ""
    assert answer_f1("the red house", "red houses") == pytest.approx(0.5)
    assert answer_f1("", "x") == 0.0
    scores = tally_answers([["Rome", "the city"], ["1973"]], ["City!", "in 1973"]).scores()
    assert scores["exact_match"] == 0.5
    assert scores["f1"] == pytest.approx((1 + 2 / 3) / 2)


A, B, C, D, E, F, G = ((k, k + 1) for k in range(7))


def test_coreference_scores_of_the_muc_papers_and_b_cubeds_example() -> None:
    """Bagga and Baldwin 1998: key {1-5} {6, 7} {8-12}; two responses of the same MUC score."""
    m = [(k, k + 1) for k in range(13)]
    key = [m[1:6], m[6:8], m[8:13]]
    first = [m[1:6], m[6:13]]
    second = [[*m[1:6], *m[8:13]], m[6:8]]
    one, two = (
        tally_coreference([key], [first]).scores(),
        tally_coreference([key], [second]).scores(),
    )
    assert one["muc_f1"] == two["muc_f1"] == pytest.approx(2 * 0.9 / 1.9)
    precision = 16 / 21  # 76.2 % in the paper; recall 1
    assert one["b_cubed_f1"] == pytest.approx(2 * precision / (1 + precision))
    assert two["b_cubed_f1"] == pytest.approx(2 * (7 / 12) / (1 + 7 / 12))  # 58.3 %


def test_coreference_scores_of_luos_example() -> None:
    """Luo 2005, figure 1 (a): CEAF-φ4 of truth {1-5} {6, 7} {8-12} and system (b)."""
    m = [(k, k + 1) for k in range(13)]
    truth = [m[1:6], m[6:8], m[8:13]]
    scores = tally_coreference([truth], [[m[1:6], m[6:13]]]).scores()
    similarity = 1 + 2 * 5 / 12
    precision, recall = similarity / 2, similarity / 3
    assert scores["ceaf_e_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    assert scores["ceaf_e_f1"] == pytest.approx(0.733, abs=1e-3)


def test_coreference_counts_are_pooled_over_documents() -> None:
    gold = [[[A, B]], [[A, B, C, D]]]
    guess = [[[A, B]], []]
    scores = tally_coreference(gold, guess).scores()
    assert scores["muc_f1"] == pytest.approx(2 * 1 * 0.25 / 1.25)
    assert tally_coreference(gold, gold).scores()["f1"] == pytest.approx(1)
    assert tally_coreference([[]], [[]]).scores()["f1"] == 0.0


def test_gap_counts_links() -> None:
    links = [Link(A, B, True), Link(A, C, False)]
    scores = tally_links([links, links, links], [[[A, B]], [[A, C]], []]).scores()
    assert (scores["precision"], scores["recall"]) == (0.5, pytest.approx(1 / 3))


def test_the_bootstrap_draws_test_units_and_averages_seeds() -> None:
    """The same, drawn by hand; the gains are of so many sizes that each quantile is another."""
    units = 20
    right = [
        Tally("accuracy", [(float(k**2 + seed), 1.0) for k in range(units)]) for seed in (0, 1)
    ]
    wrong = [
        Tally("accuracy", [(float(9 * seed * k), 1.0) for k in range(units)]) for seed in (0, 1)
    ]
    low, high = paired_bootstrap(right, wrong)
    draw = np.random.default_rng(0)
    gains = []
    for _ in range(BOOTSTRAP_DRAWS):
        chosen = draw.integers(units, size=units)
        by_seed = [
            np.mean([a.counts[k][0] - b.counts[k][0] for k in chosen])
            for a, b in zip(right, wrong, strict=True)
        ]
        gains.append(np.mean(by_seed))
    assert (low, high) == pytest.approx(tuple(np.quantile(gains, (0.025, 0.975))))


def test_units_that_share_a_text_are_drawn_together() -> None:
    """As if each text were one unit; alone, three copies of each would look like more evidence."""
    draw = np.random.default_rng(1)
    ours, theirs = draw.integers(2, size=(2, 30)).astype(float)

    def interval(copies: int, groups: bool) -> float:
        tallies = [
            Tally(
                "accuracy",
                [(right, 1.0) for right in side for _ in range(copies)],
                [k for k in range(len(side)) for _ in range(copies)] if groups else (),
            )
            for side in (ours, theirs)
        ]
        low, high = paired_bootstrap(tallies[:1], tallies[1:])
        return high - low

    assert interval(3, groups=True) == pytest.approx(interval(1, groups=False))
    assert interval(3, groups=False) == pytest.approx(interval(1, groups=False) / 3**0.5, rel=0.1)


def test_the_interval_over_seeds_is_students() -> None:
    low, high = interval_over_seeds([0.7, 0.8, 0.9]) or (0, 0)
    assert (low, high) == pytest.approx(
        (0.8 - 4.302653 * 0.1 / 3**0.5, 0.8 + 4.302653 * 0.1 / 3**0.5)
    )
    assert interval_over_seeds([0.7]) is None
    scores = [{"accuracy": a, "f1": f, "epoch": 1} for a, f in ((1, 0.7), (3, 0.8), (5, 0.9))]
    assert [*mean_over_seeds(scores)] == ["f1", "accuracy", "f1_sd"]
    expected = {"f1": 0.8, "accuracy": 3, "f1_sd": 0.1}  # √((0.1² + 0² + 0.1²) / 2)
    assert mean_over_seeds(scores) == pytest.approx(expected)
