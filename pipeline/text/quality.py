"""Counts that tell of a text's quality: duplicates, long tokens, odd scripts, no letters."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from elmo.data.manifest import TextQuality
from elmo.io.records import Count

from .text_hashes import Hashes

_SAMPLE = 2048  # sentences of a piece, at most, that are compared with those of the others
_LONGEST = 10
_LIMIT = 48
_STARTS = [0, 0x250, 0x370, 0x400, 0x530, 0x590, 0x600, 0x780, 0x900, 0xE00, 0xE80, 0x1100, 0x1200]
_NAMES = ["latin", "other", "greek", "cyrillic", "other", "hebrew", "arabic", "other"]
_NAMES += ["indic", "thai", "other", "hangul", "other"]
_STARTS += [0x1E00, 0x1F00, 0x2000, 0x3040, 0x3130, 0x3190, 0x3400, 0xA000, 0xAC00, 0xD7B0]
_NAMES += ["latin", "greek", "other", "han or kana", "hangul", "other", "han or kana", "other"]
_NAMES += ["hangul", "other"]
_STARTS += [0xF900, 0xFB00, 0xFF21, 0xFF66, 0xFFA0, 0x10000, 0x20000, 0x40000]
_NAMES += [
    "han or kana",
    "other",
    "latin",
    "han or kana",
    "hangul",
    "other",
    "han or kana",
    "other",
]
SCRIPTS = sorted(set(_NAMES))
_NO_LETTER = len(SCRIPTS)


class QualityFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """The `QualityCounts` of one piece of the corpus as a record in a file.

    `longest` are its longest tokens, at most ten, each after its number of bytes. `hashes` are the
    hashes of a sample of its sentences, end to end, each of 8 bytes, little-endian: those that
    `interval` divides. `long_tokens` and `decomposed` count tokens, `not_text` sentences, `wrapped`
    lines, and `scripts` sentences by the name of a script.
    """

    sentences: Count
    decomposed: Count
    wrapped: Count
    long_tokens: Count
    not_text: Count
    scripts: dict[str, Count]
    longest: tuple[tuple[Count, str], ...]
    interval: Count
    hashes: bytes


@dataclass
class QualityCounts:
    """Counts that show problems of a text.

    `not_text` are sentences with hardly a letter, `long_tokens` tokens over 48 bytes, `scripts` the
    sentences by their main script,
    `decomposed` tokens that are not in the Unicode form NFC, `wrapped` lines that end within a
    sentence; `longest` are the ten longest tokens, each after its number of
    bytes. `hashes` are of a sample of sentences, from which duplicates are estimated: those that
    `interval` divides, so that the same sentences are in the samples of all pieces.
    """

    sentences: int = 0
    decomposed: int = 0
    wrapped: int = 0
    long_tokens: int = 0
    not_text: int = 0
    scripts: Counter[str] = field(default_factory=Counter)
    longest: list[tuple[int, str]] = field(default_factory=list)
    interval: int = 1
    hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))

    def add_lines(self, text: bytes) -> None:
        """Count the lines of plain text that end within a sentence, by the letters around it."""
        lines = pa.array([text], pa.binary()).cast(pa.string())
        self.wrapped += pc.count_substring_regex(lines, r"\p{Ll}[,;]?\r?\n\p{Ll}")[0].as_py()

    def add(
        self,
        types: pa.StringArray,
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        hashes: Hashes,
    ) -> None:
        """Count sentences, given as `ids` of their tokens end to end, and their numbers of tokens.

        These are `lengths`; the ids index `types`, the distinct tokens. `hashes` are of the
        sentences, 0 of a blank one.
        """
        sizes = pc.binary_length(types).to_numpy()
        self.long_tokens += int((sizes > _LIMIT)[ids].sum())
        self.decomposed += int(_are_decomposed(types)[ids].sum())
        least = np.sort(sizes)[-_LONGEST:][0] if len(types) else 0
        long = np.flatnonzero(sizes >= least).tolist()
        self.longest = _longest([*self.longest, *((int(sizes[i]), types[i].as_py()) for i in long)])
        self.hashes = np.append(self.hashes, hashes[hashes != 0])
        while len(self.hashes) > _SAMPLE:
            self.interval *= 2
            self.hashes = _sampled(self.hashes, self.interval)
        begins = (np.cumsum(lengths) - lengths)[lengths > 0]
        if not len(begins):
            return
        scripts = _scripts(types)
        counts = np.zeros((len(begins), _NO_LETTER + 1), np.int32)
        commonest = np.bincount(scripts, minlength=1).argmax()
        for script in np.setdiff1d(scripts, commonest):
            counts[:, script] = np.add.reduceat((scripts == script)[ids], begins, dtype=np.int32)
        counts[:, commonest] = lengths[lengths > 0] - counts.sum(1)
        not_text = counts[:, _NO_LETTER] * 2 > counts.sum(1)
        main = np.bincount(counts[~not_text, :_NO_LETTER].argmax(1), minlength=_NO_LETTER)
        self.sentences += len(counts)
        self.not_text += int(not_text.sum())
        self.scripts.update({name: int(n) for name, n in zip(SCRIPTS, main, strict=True) if n})

    def figures(self) -> QualityFigures:
        """Return the counts as a record, to be written to a file and merged."""
        return QualityFigures(
            self.sentences,
            self.decomposed,
            self.wrapped,
            self.long_tokens,
            self.not_text,
            dict(self.scripts),
            tuple(self.longest),
            self.interval,
            self.hashes.astype("<u8").tobytes(),
        )


def summarize(reports: Sequence[QualityFigures]) -> TextQuality:
    """Return the quality of a whole text, from that of its pieces, as the manifest records it."""
    scripts = sum((Counter(report.scripts) for report in reports), Counter[str]())
    interval = max((report.interval for report in reports), default=1)
    hashes = np.frombuffer(b"".join(report.hashes for report in reports), "<u8")
    hashes = _sampled(hashes, interval)
    repeated = len(hashes) - len(np.unique(hashes))
    longest = _longest([pair for report in reports for pair in report.longest])
    return {
        "duplicate_share": round(repeated / len(hashes), 6) if len(hashes) else 0.0,
        "duplicates_sampled": len(hashes),
        "long_tokens": sum(report.long_tokens for report in reports),
        "decomposed_tokens": sum(report.decomposed for report in reports),
        "wrapped_lines": sum(report.wrapped for report in reports),
        "longest_tokens": [{"bytes": size, "token": token[:60]} for size, token in longest],
        "not_text_sentences": sum(report.not_text for report in reports),
        "odd_script_sentences": sum(scripts.values()) - max(scripts.values(), default=0),
        "scripts": dict(scripts),
    }


def _sampled(hashes: Hashes, interval: int) -> Hashes:
    return hashes[hashes % np.uint64(interval) == 0]


def _longest(tokens: list[tuple[int, str]]) -> list[tuple[int, str]]:
    return sorted(set(tokens), key=lambda pair: (-pair[0], pair[1]))[:_LONGEST]


def _are_decomposed(types: pa.StringArray) -> npt.NDArray[np.bool_]:
    """Tell of each type whether it is not in the Unicode form NFC."""
    decomposed = ~pc.string_is_ascii(types).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(decomposed)
    texts = types.take(pa.array(others)).to_pylist()
    decomposed[others] = [not is_normalized("NFC", text) for text in texts]
    return decomposed


def _scripts(types: pa.StringArray) -> npt.NDArray[np.int8]:
    """The script of each type's first letter, as an index into `SCRIPTS`."""
    scripts = np.full(len(types), SCRIPTS.index("latin"), np.int8)
    others = np.flatnonzero(~pc.match_substring_regex(types, "^[A-Za-z]").to_numpy(False))
    for i, token in zip(others.tolist(), types.take(pa.array(others)).to_pylist(), strict=True):
        scripts[i] = _script(token)
    return scripts


def _script(token: str) -> int:
    for character in token:
        if character.isalpha():
            return _INDEX[bisect_right(_STARTS, ord(character)) - 1]
    return _NO_LETTER


_INDEX = [SCRIPTS.index(name) for name in _NAMES]
