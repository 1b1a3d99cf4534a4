"""Kinds of characters: the scripts of letters, symbols, combining marks and spaces."""

from functools import cache
from typing import get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..settings.params import Script

CharacterKinds = npt.NDArray[np.int8]

# The first code point of each range of characters, and the script of its letters.
_SCRIPT_RANGES = """
    0000 latin, 0250 other, 0370 greek, 0400 cyrillic, 0530 other, 0590 hebrew, 0600 arabic,
    0780 other, 0900 indic, 0E00 thai, 0E80 other, 1100 hangul, 1200 other, 1E00 latin,
    1F00 greek, 2000 other, 3040 han or kana, 3130 hangul, 3190 other, 3400 han or kana,
    A000 other, AC00 hangul, D7B0 other, F900 han or kana, FB00 other, FF21 latin,
    FF66 han or kana, FFA0 hangul, 10000 other, 20000 han or kana
"""
_CODE_COUNT = 0x40000  # code points with a kind; those above have the kind of the last one
SCRIPTS = sorted(get_args(Script))
SYMBOL, MARK, SPACE = range(len(SCRIPTS), len(SCRIPTS) + 3)  # kinds besides the scripts
KIND_COUNT = SPACE + 1


@cache
def _kind_by_code() -> CharacterKinds:
    """Return the kind of each code point; symbols include digits and punctuation."""
    from unicodedata import category

    ranges = [entry.split(maxsplit=1) for entry in _SCRIPT_RANGES.strip().split(",")]
    starts = [int(start, 16) for start, _ in ranges]
    kinds = np.repeat(
        np.array([SCRIPTS.index(script) for _, script in ranges], np.int8),
        np.diff([*starts, _CODE_COUNT]),
    )
    for code, character in enumerate(map(chr, range(_CODE_COUNT))):
        if not character.isalpha():
            is_mark = category(character)[0] == "M"
            kinds[code] = MARK if is_mark else SPACE if character.isspace() else SYMBOL
    return kinds


def find_kinds(text: str) -> CharacterKinds:
    """Return the kind of each character of a text: an index into `SCRIPTS` for a letter."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return _kind_by_code()[np.minimum(codes, _CODE_COUNT - 1)]


def find_scripts(strings: pa.StringArray) -> CharacterKinds:
    """Return the script of the first letter of each string, `SYMBOL` for one without letters."""
    texts = strings.to_pylist()
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    kinds = np.append(find_kinds("".join(texts)), np.int8(SYMBOL))
    letters = np.flatnonzero(kinds < SYMBOL)
    first_letters = np.append(letters, len(kinds) - 1)[
        np.searchsorted(letters, np.append(0, ends)[:-1])
    ]
    return np.where(first_letters < ends, kinds[first_letters], np.int8(SYMBOL))
