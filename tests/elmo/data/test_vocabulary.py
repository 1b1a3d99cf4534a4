"""Words and ids."""

from pathlib import Path

import pytest

from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError

WORDS = ["<S>", "</S>", "<UNK>", "the", "한국어", "\u00a0", "a"]


def test_a_round_trip_keeps_words_and_counts(tmp_path: Path) -> None:
    Vocabulary(WORDS, [9, 9, 4, 3, 2, 2, 1]).save(tmp_path)
    for path in (tmp_path, tmp_path / "words.txt"):
        found = Vocabulary.load(path)
        assert found.words == WORDS
        assert found.counts == [9, 9, 4, 3, 2, 2, 1]


def test_unknown_tokens_become_unk() -> None:
    vocabulary = Vocabulary(WORDS)
    assert vocabulary.ids(["the", "nowhere", "<S>", "a"]).tolist() == [3, 2, 0, 6]
    assert (vocabulary.bos, vocabulary.eos, vocabulary.unk) == (0, 1, 2)


def test_the_marks_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_bytes(b"the\r\n<UNK>\r\n!!!MAXTERMID\r\n</S>\r\n<S>\r\n")
    vocabulary = Vocabulary.load(tmp_path / "old.txt")
    assert vocabulary.words == ["the", "<UNK>", "</S>", "<S>"]
    assert (vocabulary.bos, vocabulary.eos, vocabulary.unk) == (3, 2, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<S>\n</S>\nthe\n", r"words\.txt: the vocabulary has no <UNK>"),
        (b"<S>\n</S>\n<UNK>\na\na\n", r"words\.txt: the word 'a' is .* twice"),
        (b"<S>\n</S>\n<UNK>\na\n\nb\n", r"words\.txt:5: the line is blank"),
        (b"!!!MAXTERMID\n<S>\n\nb\n", r"words\.txt:3: the line is blank"),
        (b"<S>\n</S>\n<UNK>\n\xff\n", r"words\.txt:4: byte 1 of the line \(0xff\) is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(ElmoError, match=message):
        Vocabulary.load(tmp_path)


def test_counts_must_fit(tmp_path: Path) -> None:
    Vocabulary(WORDS, [1] * 7).save(tmp_path)
    for count in ("x", "9" * 17):
        (tmp_path / "counts.txt").write_text(f"1\n2\n{count}\n")
        with pytest.raises(ElmoError, match=r"counts\.txt:3: a count must be a whole number"):
            Vocabulary.load(tmp_path)
    (tmp_path / "counts.txt").write_text("1\n2\n")
    with pytest.raises(ElmoError, match=r"counts\.txt: has 2 counts, but .* has 7 words"):
        Vocabulary.load(tmp_path)


def test_the_line_that_2018_readers_skip_is_no_word(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="!!!MAXTERMID is not a word"):
        Vocabulary([*WORDS, "!!!MAXTERMID"])
    lines = ["<S>", "</S>", "<UNK>", "!!!MAXTERMID", "the"]
    (tmp_path / "words.txt").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "counts.txt").write_text("5\n5\n1\n7\n3\n")
    found = Vocabulary.load(tmp_path)
    assert (found.words[3:], found.counts) == (["the"], [5, 5, 1, 3])
