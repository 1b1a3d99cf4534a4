"""[x; ELMo]: what a token becomes, and where word vectors come from."""

from pathlib import Path

import numpy as np
import pytest
import torch

from elmo.errors import ElmoError
from elmo.tasks.inputs import (
    PAD,
    UNKNOWN,
    TaskInputs,
    WordTable,
    build_word_table,
    read_word_vectors,
)
from elmo.tasks.kinds import task_settings
from tests.elmo.tasks.toys import DIM, LAYERS, word_vectors

SENTENCES = [("the", "cat"), ("a", "cat", "sees")]


def test_x_and_elmo_stand_side_by_side_and_padding_is_zero() -> None:
    settings = task_settings(
        "tagging", {"word_dim": 3, "characters": 4, "elmo_output": True, "elmo_dropout": 0}
    )
    torch.manual_seed(0)
    inputs = TaskInputs(
        settings, WordTable([PAD, UNKNOWN, "cat"], None), layers=LAYERS, dim=DIM
    ).eval()
    for mix in inputs.mixes:
        torch.nn.init.normal_(mix.weights)
    text = inputs(SENTENCES, word_vectors)
    assert text.x_BTW.shape == (2, 3, 7 + DIM) and inputs.width == 7 + DIM
    assert text.mask_BT.tolist() == [[True, True, False], [True, True, True]]
    assert not text.x_BTW[0, 2].any()
    torch.testing.assert_close(text.x_BTW[..., :7], text.words_BTW)
    assert inputs.embedding is not None and text.elmo_BTD is not None
    torch.testing.assert_close(text.words_BTW[0, 1, :3], inputs.embedding.weight[2])
    torch.testing.assert_close(text.words_BTW[0, 0, :3], inputs.embedding.weight[1])
    torch.testing.assert_close(text.x_BTW[0, 1], text.x_BTW[1, 1])
    first, second = inputs.mixes
    layers = torch.from_numpy(word_vectors([("sees",)])[0])[:, 0]
    for mix, elmo in ((first, text.x_BTW[1, 2, 7:]), (second, text.elmo_BTD[1, 2])):
        torch.testing.assert_close(elmo, mix.weights.softmax(0) @ layers * mix.gamma)
    expected = 0.1 * sum((mix.weights**2).sum() for mix in inputs.mixes)
    torch.testing.assert_close(inputs.l2(), expected)


def test_words_are_those_seen_often_enough_in_training() -> None:
    settings = task_settings("tagging", {"min_count": 2})
    table = build_word_table(settings, SENTENCES)
    assert table.words == [PAD, UNKNOWN, "cat"] and table.vectors is None
    assert TaskInputs(settings, table, layers=LAYERS, dim=DIM)._word_id("Cat") == 1


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_vectors_of_a_text_file_are_kept_as_they_are(tmp_path: Path, header: str) -> None:
    """GloVe's has no header, and words with spaces; word2vec's says how many and how wide."""
    path = tmp_path / "vectors.txt"
    path.write_text(f"{header}cat 1.0 2.0\n. . . 3 4\nthe -1 0\n")
    words, vectors = read_word_vectors(path, {"cat"}, dim=2)
    assert words == ["cat", ". . .", "the"]
    np.testing.assert_array_equal(vectors, [[1, 2], [3, 4], [-1, 0]])
    settings = task_settings("tagging", {"words": "file", "word_file": str(path), "word_dim": 2})
    table = build_word_table(settings, SENTENCES)
    inputs = TaskInputs(settings, table, layers=LAYERS, dim=DIM)
    assert inputs.embedding is not None and not inputs.embedding.weight.requires_grad
    np.testing.assert_allclose(inputs.embedding.weight[1], [1, 2])  # the mean of all
    np.testing.assert_allclose(inputs.embedding.weight[2], [1, 2])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("cat 1 2 3\ndog 1\n", 2, "must be a word and 3 numbers"),
        ("cat 1 x 3\n", 1, "must be a word and 3 numbers"),
        ("cat 1 nan 3\n", 1, "must be a word and 3 numbers"),
        ("2 5\ncat 1 2 3\n", 1, "has 5 numbers per word, but word_dim is 3; set word_dim=5"),
    ],
)
def test_broken_vectors_are_refused(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(ElmoError) as refused:
        read_word_vectors(path, set(), dim=3)
    assert str(refused.value).startswith(f"{path}:{line}: ") and message in str(refused.value)
    with pytest.raises(ElmoError, match="is a pipe or a device"):
        read_word_vectors(Path("/dev/zero"), set(), dim=3)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    with pytest.raises(ElmoError, match="v.txt:1: the line has more than 16,777,216 bytes"):
        read_word_vectors(path, set(), dim=3)
    path.write_text("")
    with pytest.raises(ElmoError, match="holds no vectors"):
        read_word_vectors(path, set(), dim=3)


def test_an_average_learns_gamma_alone() -> None:
    inputs = TaskInputs(
        task_settings("tagging", {"mix": "average"}), WordTable([PAD], None), layers=LAYERS, dim=DIM
    )
    (mix,) = inputs.mixes
    assert mix.gamma.requires_grad and not mix.weights.requires_grad


@pytest.mark.parametrize("kind", ["pairs", "coreference"])
def test_elmo_at_the_input_is_dropped_once_as_the_baseline_is(kind: str) -> None:
    """The model drops its whole input, so the mixed vector comes to it as it is."""
    settings = task_settings(kind, {"characters": 4})
    torch.manual_seed(0)
    inputs = TaskInputs(settings, WordTable([PAD, UNKNOWN], None), layers=LAYERS, dim=DIM).train()
    once, again = inputs(SENTENCES, word_vectors), inputs(SENTENCES, word_vectors)
    torch.testing.assert_close(once.x_BTW, again.x_BTW)


def test_a_word_that_a_file_lacks_has_the_vector_of_its_lower_case(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 2\nNasa 5 6\nthe 3 4\n")
    settings = task_settings(
        "tagging", {"words": "file", "word_file": str(path), "word_dim": 2, "characters": 0}
    )
    inputs = TaskInputs(settings, build_word_table(settings, SENTENCES), layers=LAYERS, dim=DIM)
    words_TD = inputs([("The", "CAT", "Nasa", "NASA")], word_vectors).words_BTW[0]
    unknown = [3.0, 4.0]  # the mean of all
    assert words_TD.tolist() == [[3, 4], [1, 2], [5, 6], unknown]


def test_a_rare_word_of_training_has_the_vector_of_its_lower_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.tasks.inputs.MAX_FILE_WORDS", 1)
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 2\nrare 5 6\nthe 3 4\n")
    settings = task_settings("tagging", {"words": "file", "word_file": str(path), "word_dim": 2})
    assert build_word_table(settings, [("The",)]).words == [PAD, UNKNOWN, "cat", "the"]
