"""Tokens as characters, to the byte as in 2018."""

from pathlib import Path

import numpy as np
import pytest

from elmo.data.characters import Characters
from elmo.errors import ElmoError

BOS, EOS, BOW, EOW, PAD = 256, 257, 258, 259, 260


def slow(token: str) -> list[int]:
    """The layout written out by hand."""
    ids = [BOW, *token.encode("utf-8")[:48], EOW]
    return ids + [PAD] * (50 - len(ids))


def test_bytes_agree_with_the_layout_by_hand() -> None:
    """The cut after 48 bytes may split a character."""
    tokens = ["", "a", "café", "한국어", "カナ", "😀", "ÿ" * 60]
    tokens += ["x" * 47, "x" * 48, "x" * 49, "어" * 20, "a" + "어" * 16]
    rows = Characters().encode(tokens)
    assert rows.tolist() == [slow(token) for token in tokens]
    assert (rows.dtype, Characters().size) == (np.int32, PAD + 1)
    assert Characters().encode([]).shape == (0, 50)


def test_boundaries_have_their_own_form() -> None:
    rows = Characters().encode(["<S>", "</S>", "<UNK>"]).tolist()
    assert rows[0] == [BOW, BOS, EOW] + [PAD] * 47
    assert rows[1] == [BOW, EOS, EOW] + [PAD] * 47
    assert rows[2] == slow("<UNK>")


def test_unicode_characters_with_an_unknown_one(tmp_path: Path) -> None:
    characters = Characters(("가", "나"), 6)
    assert characters.size == 2 + 1 + 5
    assert characters.encode(["나다가", "나" * 9]).tolist() == [
        [5, 1, 2, 0, 6, 7],
        [5, 1, 1, 1, 1, 6],
    ]
    characters.save(tmp_path / "characters.json")
    assert Characters.load(tmp_path / "characters.json") == characters


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "bytes", "max_characters": 10000000000}', "max_characters: "),
        ('{"kind": "unicode", "max_characters": 50}', "kind unicode needs a list of symbols"),
        ('{"kind": "bytes", "max_characters": 50, "symbols": ["a"]}', "kind bytes has none"),
        ('{"kind": "unicode", "max_characters": 9, "symbols": ["a", "a"]}', "a character twice"),
        ('{"kind": "bytes", "max_characters": 50, "more": 1}', "unknown field `more`"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "characters.json"
    path.write_text(text)
    with pytest.raises(ElmoError, match=message):
        Characters.load(path)


def test_a_length_that_no_token_has_is_refused() -> None:
    for length in (2, 1025, 10**10, 5.0):
        with pytest.raises(ElmoError, match="max_characters must be an integer from 3 to 1024"):
            Characters(max_characters=length)  # type: ignore[arg-type]
