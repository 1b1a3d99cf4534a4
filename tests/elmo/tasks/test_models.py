"""The parts of the task models against slow versions written out by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from elmo.tasks.coreference import build_clusters, candidate_spans
from elmo.tasks.examples import Document, Link
from elmo.tasks.kinds import KINDS, task_settings
from elmo.tasks.modules import (
    FORBIDDEN_SCORE,
    BidirectionalRNN,
    SharedDropout,
    masked_softmax,
    viterbi_decode,
)
from elmo.tasks.roles import HighwayLSTM
from tests.elmo.tasks.test_task import network
from tests.elmo.tasks.toys import examples, word_vectors


def masks(*lengths: int) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_the_decoder_obeys_what_is_forbidden() -> None:
    emissions = torch.tensor([[[0.0, 9.0], [9.0, 0.0], [0.0, 9.0]]])
    moves = torch.tensor([[0.0, FORBIDDEN_SCORE], [0.0, 0.0]])
    start, end = torch.tensor([0.0, FORBIDDEN_SCORE]), torch.zeros(2)
    assert viterbi_decode(emissions, masks(3), torch.zeros(2, 2), end, end) == [[1, 0, 1]]
    assert viterbi_decode(emissions, masks(3), moves, start, end) == [[0, 0, 0]]


def test_a_masked_softmax_of_nothing_is_nothing() -> None:
    scores = torch.tensor([[1.0, 1.0, 5.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    torch.testing.assert_close(
        masked_softmax(scores, mask), torch.tensor([[0.5, 0.5, 0], [0, 0, 0]])
    )


def test_shared_dropout_has_one_mask_per_sentence() -> None:
    torch.manual_seed(0)
    dropped = SharedDropout(0.5)(torch.ones(4, 6, 20))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])


def test_dropout_of_the_state_has_one_mask_per_sentence() -> None:
    torch.manual_seed(0)
    layer = HighwayLSTM(3, 8, dropout=0.5, backward=False)
    read = layer(torch.randn(1, 5, 3).expand(4, 5, 3), masks(5, 5, 5, 5))
    assert all(not torch.allclose(read[a], read[b]) for a in range(4) for b in range(a))


@pytest.mark.parametrize("depth", [1, 2])
def test_dropout_stands_between_layers_alone(depth: int) -> None:
    """All is dropped there, so that a second layer reads nothing of the text."""
    layers = BidirectionalRNN(3, 4, depth=depth, dropout=1.0)
    one, other = (layers(torch.randn(1, 5, 3), masks(5)) for _ in range(2))
    assert torch.equal(one, other) == (depth == 2)


def document(*sentences: str, links: tuple[Link, ...] = ()) -> Document:
    return Document("x", "x", tuple(tuple(s.split()) for s in sentences), (), links)


def test_candidates_stay_in_their_sentence() -> None:
    assert candidate_spans(document("a b c", "d"), 2) == [
        (0, 1),
        (0, 2),
        (1, 2),
        (1, 3),
        (2, 3),
        (3, 4),
    ]
    links = (Link((3, 4), (0, 2), True), Link((3, 4), (2, 3), False))
    assert candidate_spans(document("a b c", "d", links=links), 2) == [(0, 2), (2, 3), (3, 4)]


def test_kept_spans_do_not_cross_and_are_the_best() -> None:
    settings = task_settings("coreference", {"words": "none", "characters": 0, "span_tokens": 3})
    model: Any = network("coreference", settings, [])
    text = document("a b c d")
    spans = candidate_spans(text, 3)
    scores = torch.zeros(len(spans))
    for score, span in ((5, (0, 2)), (4, (1, 3)), (3, (1, 2)), (2, (0, 3))):
        scores[spans.index(span)] = score
    assert [spans[k] for k in model._prune(text, spans, scores)] == [(0, 2)]  # 0.4 of 4 tokens
    assert model._prune(document("a"), [(0, 1)], torch.zeros(1)) == [0]  # one, of however few
    model.settings = task_settings("coreference", {"spans_per_token": 0.75, "span_tokens": 3})
    assert [spans[k] for k in model._prune(text, spans, scores)] == [(0, 2), (0, 3), (1, 2)]


@pytest.mark.parametrize(
    ("first", "second", "crossing"), [((1, 4), (1, 2), (0, 3)), ((0, 3), (2, 3), (1, 4))]
)
def test_a_shorter_span_within_a_kept_one_lets_none_cross_it(
    first: tuple[int, int], second: tuple[int, int], crossing: tuple[int, int]
) -> None:
    changes = {"words": "none", "characters": 0, "span_tokens": 3, "spans_per_token": 0.75}
    model: Any = network("coreference", task_settings("coreference", changes), [])
    text = document("a b c d")
    spans = candidate_spans(text, 3)
    scores = torch.zeros(len(spans))
    for score, span in enumerate((crossing, second, first), 1):
        scores[spans.index(span)] = score
    kept = [spans[k] for k in model._prune(text, spans, scores)]
    assert first in kept and second in kept and crossing not in kept


def test_distances_of_antecedents_have_the_papers_buckets() -> None:
    settings = task_settings("coreference", {"words": "none", "characters": 0, "hidden": 50})
    model: Any = network("coreference", settings, []).eval()
    width = (model.pair[0].in_features - model.distance.embedding_dim) // 3
    nothing = torch.zeros(80, width), torch.zeros(80), torch.zeros(80, 1, dtype=torch.long)
    scores = model._score_pairs(*nothing)[:, 0].tolist()  # of each with the first
    begins = [k for k in range(1, 80) if scores[k] != scores[k - 1]]
    assert begins == [1, 2, 3, 4, 5, 8, 16, 32, 64]


def test_links_make_clusters() -> None:
    spans = [(k, k + 1) for k in range(6)]
    assert build_clusters(spans, [(1, 0), (3, 2), (4, 1)]) == [
        [(0, 1), (1, 2), (4, 5)],
        [(2, 3), (3, 4)],
    ]
    assert build_clusters(spans, []) == []


def test_a_document_trained_on_in_pieces_learns_from_spans_inside() -> None:
    settings = task_settings("coreference", {"words": "none", "characters": 0, "sentences": 2})
    texts = (("x", "ann"), ("y", "ann"), ("ann", "so", "z"), ("w", "ann"))
    mentions = ((1, 2), (3, 4), (4, 6), (8, 9))  # all but one end a sentence
    example = Document("x", "x", texts, (mentions,), ())
    model: Any = network("coreference", settings, [example])
    torch.manual_seed(0)
    pieces = {
        piece.tokens_of: piece.clusters
        for piece in (model._cut_passage(example) for _ in range(40))
    }
    assert pieces == {
        texts[:2]: (((1, 2), (3, 4)),),
        texts[1:3]: (((1, 2), (2, 4)),),
        texts[2:]: (((0, 2), (4, 5)),),
    }


@pytest.mark.parametrize(
    "kind", ["tagging", "classification", "pairs", "questions", "roles", "coreference"]
)
def test_the_baseline_differs_in_the_width_of_its_input_alone(kind: str) -> None:
    few = examples(kind, 5)
    shapes = []
    for elmo in ("frozen", "none"):
        settings = task_settings(
            kind, {"elmo": elmo, "words": "none", "elmo_output": False, "hidden": 6}
        )
        model = network(kind, settings, few)
        assert isinstance(model, nn.Module) and isinstance(model, KINDS[kind].model_class())
        model.loss(few, word_vectors if elmo == "frozen" else None)
        shapes.append({name: p.shape for name, p in model.named_parameters()})
    extra = set(shapes[0]) - set(shapes[1])
    assert extra == {"inputs.own_mixes.0.weights", "inputs.own_mixes.0.gamma"}
    differing = [name for name in shapes[1] if shapes[0][name] != shapes[1][name]]
    assert 1 <= len(differing) <= 2  # what reads [x; ELMo], forward and backward
