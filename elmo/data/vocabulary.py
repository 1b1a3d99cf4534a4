"""The vocabulary of the softmax: words and their ids, in the 2018 file format, and their counts."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmo.data.characters import SENTENCE_BEGIN, SENTENCE_END
from elmo.errors import ElmoError
from elmo.io.atomic import new_file
from elmo.io.text_files import numbered_lines

UNK = "<UNK>"
_MAX_TERM_ID = "!!!MAXTERMID"  # a line of this format that readers skip
SPECIAL_WORDS = (SENTENCE_BEGIN, SENTENCE_END, UNK)  # words of every vocabulary
RESERVED_WORDS = (*SPECIAL_WORDS, _MAX_TERM_ID)  # tokens of a text that cannot become words


class Vocabulary:
    """The words that a model predicts, with their ids: `<S>`, `</S>`, `<UNK>`, then words from the
    most frequent to the rarest. The sampled softmax relies on this order.

    `counts[i]` is how often word i occurs in the training text; `counts` is None if unknown.
    """

    def __init__(self, words: Iterable[str], counts: Iterable[int] | None = None) -> None:
        self.words = list(words)
        self.counts = None if counts is None else list(counts)
        self._id_by_word = {word: i for i, word in enumerate(self.words)}
        if len(self._id_by_word) != len(self.words):
            word = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ElmoError(f"the word {word!r} is in the vocabulary twice; remove one")
        if absent_words := [word for word in SPECIAL_WORDS if word not in self._id_by_word]:
            raise ElmoError(
                f"the vocabulary has no {', '.join(absent_words)}; add a line for each at the top"
            )
        if _MAX_TERM_ID in self._id_by_word:
            raise ElmoError(f"{_MAX_TERM_ID} is not a word; remove it")
        if self.counts is not None and len(self.counts) != len(self.words):
            raise ElmoError(
                f"{len(self.words)} words but {len(self.counts)} counts; make both again"
            )
        self.bos, self.eos, self.unk = (self._id_by_word[word] for word in SPECIAL_WORDS)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._id_by_word

    def ids(self, tokens: Iterable[str]) -> npt.NDArray[np.int32]:
        """Return the word id of each token, int32; unknown tokens get the id of `<UNK>`."""
        get_id, unk = self._id_by_word.get, self.unk
        return np.fromiter((get_id(token, unk) for token in tokens), np.int32)

    def save(self, folder: Path) -> None:
        """Write `words.txt` and, if counts are known, `counts.txt` to `folder`, an entry per
        line."""
        _write_lines(folder / "words.txt", self.words)
        if self.counts is not None:
            _write_lines(folder / "counts.txt", map(str, self.counts))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a vocabulary from `path`, a file of words, one per line, or a folder with
        `words.txt`.

        `counts.txt` beside `words.txt` is read too, if it exists. Raises `ElmoError`, which names
        the line, if one is invalid.
        """
        file = path / "words.txt" if path.is_dir() else path
        lines = [line for _, line in numbered_lines(file)]
        word_indices = [i for i, word in enumerate(lines) if word != _MAX_TERM_ID]
        words = [lines[i] for i in word_indices]
        if "" in words:
            line = word_indices[words.index("")] + 1
            raise ElmoError(f"{file}:{line}: the line is blank; delete it")
        counts_path = file.with_name("counts.txt")
        counts = None
        if file.name == "words.txt" and counts_path.exists():
            counts = [_parse_count(counts_path, *line) for line in numbered_lines(counts_path)]
            if len(counts) != len(lines):
                raise ElmoError(
                    f"{counts_path}: has {len(counts)} counts, but {file} has {len(lines)} words; "
                    "make both again"
                )
            counts = [counts[i] for i in word_indices]
        try:
            return cls(words, counts)
        except ElmoError as error:
            raise ElmoError(f"{file}: {error}") from None


def _parse_count(path: Path, number: int, line: str) -> int:
    if not (line.isascii() and line.isdecimal() and len(line) < 17):
        raise ElmoError(f"{path}:{number}: a count must be a whole number, found {line[:40]!r}")
    return int(line)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with new_file(path) as new_path:
        new_path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
