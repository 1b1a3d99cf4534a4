"""Text of a token → ids of its characters: UTF-8 bytes as in 2018, or Unicode characters.

Ids here are *raw*: the 2018 inference files' shift by one (0 for a masked position) exists only in
`elmo.mix.batch_to_ids`. A token is laid out as [BOW, characters…, EOW, PAD…], and PAD is a learned
character like any other: the convolution sees it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from elmo.files import read_json, write_json

SENTENCE_BEGIN, SENTENCE_END = "<S>", "</S>"
MAX_CHARACTERS = 50


@dataclass(frozen=True)
class Characters:
    """The character vocabulary: `symbols` are Unicode characters, or None for the 256 bytes.

    After the characters (and, for Unicode, one id for unknown ones) come five marks in the order of
    2018: begin and end of sentence, begin and end of word, padding.
    """

    symbols: tuple[str, ...] | None = None
    max_characters: int = MAX_CHARACTERS

    @property
    def kind(self) -> str:
        """`bytes` or `unicode`."""
        return "bytes" if self.symbols is None else "unicode"

    @property
    def marks(self) -> int:
        """The id of the first mark: 256 for bytes."""
        return 256 if self.symbols is None else len(self.symbols) + 1

    @property
    def size(self) -> int:
        """How many characters there are, marks included: 261 for bytes."""
        return self.marks + 5

    @property
    def pad(self) -> int:
        """The id of the padding character."""
        return self.marks + 4

    def encode(self, tokens: Sequence[str]) -> npt.NDArray[np.int32]:
        """Encode N tokens as (N, max_characters) raw ids.

        What does not fit is cut: bytes after the first 48, even inside a character. `<S>` and
        `</S>` become the boundary forms.
        """
        begin, end, begin_word, end_word, pad = range(self.marks, self.marks + 5)
        room = self.max_characters - 2
        inside = [self._inside(token)[:room] for token in tokens]
        lengths = np.fromiter(map(len, inside), np.int64, len(tokens))
        column = np.arange(self.max_characters)
        ids = np.where(column == lengths[:, None] + 1, end_word, pad).astype(np.int32)
        ids[:, 0] = begin_word
        ids[(column >= 1) & (column <= lengths[:, None])] = np.fromiter(chain(*inside), np.int32)
        for row, token in enumerate(tokens):
            if token in (SENTENCE_BEGIN, SENTENCE_END):
                ids[row, 1:] = pad
                ids[row, 1:3] = (begin if token == SENTENCE_BEGIN else end), end_word
        return ids

    def longer(self, tokens: Iterable[str]) -> int:
        """How many of the tokens do not fit and would be cut."""
        room = self.max_characters - 2
        if self.symbols is None:
            return sum(len(token.encode("utf-8", "ignore")) > room for token in tokens)
        return sum(len(token) > room for token in tokens)

    def save(self, path: Path) -> None:
        """Write `characters.json`."""
        value = {"kind": self.kind, "max_characters": self.max_characters}
        write_json(path, value if self.symbols is None else value | {"symbols": self.symbols})

    @classmethod
    def load(cls, path: Path) -> "Characters":
        """Read `characters.json`."""
        value = read_json(path)
        kind, room = value.get("kind"), value.get("max_characters")
        if kind not in ("bytes", "unicode"):
            raise ElmoError(f"{path}: kind must be 'bytes' or 'unicode', found {kind!r}")
        if type(room) is not int or room < 3:
            raise ElmoError(f"{path}: max_characters must be an integer of 3 or more")
        if kind == "bytes":
            return cls(max_characters=room)
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(s, str) for s in symbols):
            raise ElmoError(f"{path}: symbols must be a list of characters")
        return cls(tuple(symbols), room)

    def _inside(self, token: str) -> Sequence[int]:
        if self.symbols is None:
            return token.encode("utf-8", "ignore")
        ids = self._ids
        return [ids.get(character, len(ids)) for character in token]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols or ())}
