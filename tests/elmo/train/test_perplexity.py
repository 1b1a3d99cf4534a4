"""A line of any length is scored in pieces: the same numbers, in memory that does not grow."""

import math
from pathlib import Path

import numpy as np
import pytest

from elmo.model.folder import Model
from elmo.train import perplexity as module
from elmo.train.perplexity import perplexity, sentence_scores
from tests.elmo.watching import Watching
from tests.pipeline.command_line import elmo


def line(model: Model, tokens: int) -> list[str]:
    words = model.vocabulary.words[3:] + ["unseen", "안녕"]
    return [words[k] for k in np.random.default_rng(0).integers(0, len(words), tokens)]


def test_a_long_line_in_pieces_has_the_same_scores(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(tiny_model, 700), ["a"], line(tiny_model, 5), line(tiny_model, 300)]
    whole, whole_scores = perplexity(tiny_model, lines), sentence_scores(tiny_model, lines)
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 100)
    monkeypatch.setattr(module, "MIN_TIME_STEPS", 64)
    pieces = perplexity(tiny_model, lines)
    assert vars(pieces) == pytest.approx(vars(whole), rel=1e-6, nan_ok=True)
    count = sum(map(len, lines)) + len(lines)
    ways = [math.exp(sum(scores) / count) for scores in zip(*whole_scores, strict=True)]
    assert [whole.forward, whole.backward] == pytest.approx(ways, rel=1e-6)
    assert whole.average == pytest.approx((ways[0] + ways[1]) / 2, rel=1e-6)
    assert ways[0] / ways[1] - 1 > 0.01 or ways[1] / ways[0] - 1 > 0.01  # not the geometric mean
    assert (whole.tokens, whole.sentences) == (count - len(lines), len(lines))
    np.testing.assert_allclose(sentence_scores(tiny_model, lines), whole_scores, rtol=1e-6)


def test_marks_of_sentences_in_the_text_have_a_finite_perplexity(tiny_model: Model) -> None:
    found = perplexity(tiny_model, [["<S>", "a", "gift", "</S>"], ["a", "</S>", "<S>"]])
    assert all(np.isfinite(value) for value in vars(found).values())


def test_memory_does_not_grow_with_a_line(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOKENS_AT_ONCE", 128)
    largest = []
    for tokens in (128, 1280):
        with Watching() as seen:
            sentence_scores(tiny_model, [line(tiny_model, tokens)])
        largest.append(max(max(one.bytes, default=0) for one in seen.operations))
    assert largest[0] == largest[1]


def test_the_command_scores_a_line_that_embed_refuses(
    tiny_model: Model, tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.commands.models.MAX_SENTENCE_TOKENS", 100)
    text = " ".join(line(tiny_model, 200)).encode()
    arguments = [tiny_model_folder, "--input", "-", "--pretokenized"]
    code, out, error = elmo("perplexity", *arguments, stdin=text)
    assert (code, error) == (0, "") and "over 200 tokens" in out
    code, _, error = elmo("embed", *arguments, "--output", tmp_path / "out.npz", stdin=text)
    assert code == 1 and "has 200 tokens, more than 100" in error
