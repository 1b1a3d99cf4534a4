"""The character vocabulary: token to character ids, of UTF-8 bytes (as in 2018) or Unicode.

Ids in this file start at 0. Only `Characters.encode_batch` shifts them by one and has 0 for a
masked position, as in the 2018 inference files. A token is laid out as [BOW, characters…, EOW,
PAD…]. PAD is a learned character like any other: the convolution sees it.

Shapes: B sentences, T tokens of the longest, K characters of a token.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from elmo.data.tokenizer import is_text
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.records import read_record
from elmo.settings import MAX_CHARACTERS

SENTENCE_BEGIN, SENTENCE_END = "<S>", "</S>"
DEFAULT_MAX_CHARACTERS = 50


class _CharactersRecord(msgspec.Struct, forbid_unknown_fields=True):
    """`characters.json`."""

    kind: Literal["bytes", "unicode"]
    max_characters: Annotated[int, Meta(ge=3, le=MAX_CHARACTERS)]
    symbols: tuple[Annotated[str, Meta(min_length=1, max_length=1)], ...] | None = None


@dataclass(frozen=True)
class Characters:
    """A character vocabulary, which turns tokens into character ids. The characters are `symbols`
    or, if that is None, the 256 bytes of UTF-8, as in 2018.

    After the ids of the characters (and, for symbols, one for unknown ones) come five special ids:
    begin and end of sentence, begin and end of word, padding. A token has `max_characters` ids,
    including its begin, end and padding.
    """

    symbols: tuple[str, ...] | None = None
    max_characters: int = DEFAULT_MAX_CHARACTERS

    def __post_init__(self) -> None:
        if type(self.max_characters) is not int or not 3 <= self.max_characters <= MAX_CHARACTERS:
            raise ElmoError(
                f"max_characters must be an integer from 3 to {MAX_CHARACTERS}, "
                f"found {self.max_characters!r}"
            )

    @property
    def kind(self) -> str:
        """Return the kind of characters: `bytes` or `unicode`."""
        return "bytes" if self.symbols is None else "unicode"

    @property
    def first_special_id(self) -> int:
        """Return the first of the five special ids (begin and end of sentence, begin and end of
        word, padding): 256 for bytes."""
        return 256 if self.symbols is None else len(self.symbols) + 1

    @property
    def size(self) -> int:
        """Return the number of character ids, including the five special ones: 261 for bytes."""
        return self.first_special_id + 5

    def encode(self, tokens: Sequence[str]) -> npt.NDArray[np.int32]:
        """Return the character ids of tokens, int32 (tokens, max_characters), without the shift of
        `encode_batch`.

        A token longer than `max_characters - 2` is truncated, for bytes possibly within a
        character. The tokens `<S>` and `</S>` become the special ids of a sentence's begin and end.
        """
        begin, end, begin_word, end_word, pad = range(self.size - 5, self.size)
        max_codes = self.max_characters - 2
        codes = [self._encode_characters(token)[:max_codes] for token in tokens]
        lengths = np.fromiter(map(len, codes), np.int64, len(tokens))
        column = np.arange(self.max_characters)
        ids = np.where(column == lengths[:, None] + 1, end_word, pad).astype(np.int32)
        ids[:, 0] = begin_word
        ids[(column >= 1) & (column <= lengths[:, None])] = np.fromiter(chain(*codes), np.int32)
        for row, token in enumerate(tokens):
            if token in (SENTENCE_BEGIN, SENTENCE_END):
                ids[row, 1:] = pad
                ids[row, 1:3] = (begin if token == SENTENCE_BEGIN else end), end_word
        return ids

    def encode_batch(self, sentences: Sequence[Sequence[str]]) -> npt.NDArray[np.int64]:
        """Return the character ids of several token lists, int64 (sentences, longest sentence,
        max_characters). As in AllenNLP's `batch_to_ids`, each id is shifted by one, and positions
        without a token are 0."""
        check_token_lists(sentences)
        max_length = max(map(len, sentences), default=0)
        ids_BTK = np.zeros((len(sentences), max_length, self.max_characters), np.int64)
        for row, sentence in enumerate(sentences):
            ids_BTK[row, : len(sentence)] = self.encode(list(sentence)).astype(np.int64) + 1
        return ids_BTK

    def save(self, path: Path) -> None:
        """Write this character vocabulary to the JSON file `path`, usually `characters.json`."""
        record = {"kind": self.kind, "max_characters": self.max_characters}
        write_json(path, record if self.symbols is None else record | {"symbols": self.symbols})

    @classmethod
    def load(cls, path: Path) -> "Characters":
        """Read a character vocabulary from the JSON file `path`; raise `ElmoError` if invalid."""
        record = read_record(path, _CharactersRecord)
        symbols = record.symbols
        if (record.kind == "unicode") != (symbols is not None):
            raise ElmoError(f"{path}: kind unicode needs a list of symbols, kind bytes has none")
        if len(set(symbols or ())) != len(symbols or ()):
            raise ElmoError(f"{path}: symbols lists a character twice; remove one")
        return cls(symbols, record.max_characters)

    def _encode_characters(self, token: str) -> Sequence[int]:
        if self.symbols is None:
            return token.encode("utf-8")
        ids = self._id_by_symbol
        return [ids.get(character, len(ids)) for character in token]

    @cached_property
    def _id_by_symbol(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols or ())}


def check_token_lists(sentences: Sequence[Sequence[str]]) -> None:
    """Raise `ElmoError`, which names the fault, unless `sentences` is a list of lists of
    strings."""
    if isinstance(sentences, str) or not _is_list(sentences):
        raise ElmoError(f"sentences must be a list of token lists, found {_type_name(sentences)}")
    for index, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise ElmoError(
                f"sentence {index}: must be a list of tokens, found a string; split it, "
                "for example with Embedder.tokenize"
            )
        if not _is_list(sentence):
            raise ElmoError(f"sentence {index}: must be a list of tokens, found {sentence!r:.80}")
        with suppress(TypeError):  # of a token that is no string
            if is_text("".join(sentence)):
                continue
        for k, token in enumerate(sentence):
            if not isinstance(token, str) or not is_text(token):
                kind = "UTF-8 without zero bytes" if isinstance(token, str) else "a string"
                raise ElmoError(f"sentence {index}: token {k} must be {kind}, found {token!r:.80}")


def _is_list(value: object) -> bool:
    """Tell whether a value has a length and elements in order, as lists and arrays have."""
    if isinstance(value, Mapping) or hasattr(value, "columns") or getattr(value, "ndim", 1) == 0:
        return False
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _type_name(value: object) -> str:
    return "a string; tokenize it" if isinstance(value, str) else f"a {type(value).__name__}"
