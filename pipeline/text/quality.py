"""Counts that show the quality of a text: duplicates, scripts, tokens without letters."""

from collections import Counter
from collections.abc import Sequence
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from elmo.data.manifest import TextQuality
from elmo.io.records import Count

from .characters import SCRIPTS, SYMBOL, find_scripts
from .text_hashes import Hashes

_SAMPLE_SENTENCES = 2048  # sentences per piece, at most, compared with other pieces


class QualityCounts(Struct):
    """Counts that show problems of a text, or of a piece of it.

    `not_text` counts sentences with hardly any letters, `scripts` sentences by their main script,
    `decomposed` tokens that are not in the Unicode form NFC, and `wrapped` lines that end within a
    sentence. `hashes` has the hashes of a sample of the sentences, 8 bytes each, little-endian,
    from which duplicates are estimated. The sample has the hashes that `interval` divides, so all
    pieces sample the same sentences.
    """

    sentences: Count = 0
    decomposed: Count = 0
    wrapped: Count = 0
    not_text: Count = 0
    scripts: dict[str, Count] = {}
    interval: Count = 1
    hashes: bytes = b""

    def add_lines(self, text: bytes) -> None:
        """Count the lines of plain text that end within a sentence, between lower-case letters."""
        lines = pa.array([text], pa.binary()).cast(pa.string())
        self.wrapped += pc.count_substring_regex(lines, r"\p{Ll}[,;]?\r?\n\p{Ll}")[0].as_py()

    def add(
        self,
        types: pa.StringArray,
        ids: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        hashes: Hashes,
    ) -> None:
        """Count sentences, given as the `ids` of their tokens end to end.

        The ids index `types`, the distinct tokens. `lengths` has the number of tokens of each
        sentence, `hashes` its hash (0: blank).
        """
        self.decomposed += int(_are_decomposed(types)[ids].sum())
        sample = np.append(np.frombuffer(self.hashes, "<u8"), hashes[hashes != 0])
        while len(sample) > _SAMPLE_SENTENCES:
            self.interval *= 2
            sample = _sample_hashes(sample, self.interval)
        self.hashes = sample.astype("<u8").tobytes()
        starts = (np.cumsum(lengths) - lengths)[lengths > 0]
        if not len(starts):
            return
        scripts = find_scripts(types)
        counts = np.zeros((len(starts), SYMBOL + 1), np.int32)
        commonest_script = np.bincount(scripts, minlength=1).argmax()
        for script in np.setdiff1d(scripts, commonest_script):
            counts[:, script] = np.add.reduceat((scripts == script)[ids], starts, dtype=np.int32)
        counts[:, commonest_script] = lengths[lengths > 0] - counts.sum(1)
        is_not_text = counts[:, SYMBOL] * 2 > counts.sum(1)
        main_script_counts = np.bincount(counts[~is_not_text, :SYMBOL].argmax(1), minlength=SYMBOL)
        self.sentences += len(counts)
        self.not_text += int(is_not_text.sum())
        for script, count in zip(SCRIPTS, main_script_counts.tolist(), strict=True):
            if count:
                self.scripts[script] = self.scripts.get(script, 0) + count


def summarize_quality(piece_counts: Sequence[QualityCounts]) -> TextQuality:
    """Return the quality of a text as the manifest records it, from the counts of its pieces."""
    scripts = sum((Counter(counts.scripts) for counts in piece_counts), Counter[str]())
    interval = max((counts.interval for counts in piece_counts), default=1)
    hashes = np.frombuffer(b"".join(counts.hashes for counts in piece_counts), "<u8")
    hashes = _sample_hashes(hashes, interval)
    repeat_count = len(hashes) - len(np.unique(hashes))
    return {
        "duplicate_share": round(repeat_count / len(hashes), 6) if len(hashes) else 0.0,
        "duplicates_sampled": len(hashes),
        "decomposed_tokens": sum(counts.decomposed for counts in piece_counts),
        "wrapped_lines": sum(counts.wrapped for counts in piece_counts),
        "not_text_sentences": sum(counts.not_text for counts in piece_counts),
        "scripts": dict(scripts),
    }


def _sample_hashes(hashes: Hashes, interval: int) -> Hashes:
    return hashes[hashes % np.uint64(interval) == 0]


def _are_decomposed(types: pa.StringArray) -> npt.NDArray[np.bool_]:
    """Tell for each type whether it is not in the Unicode form NFC."""
    is_decomposed = ~pc.string_is_ascii(types).to_numpy(zero_copy_only=False)
    non_ascii_ids = np.flatnonzero(is_decomposed)
    texts = types.take(pa.array(non_ascii_ids)).to_pylist()
    is_decomposed[non_ascii_ids] = [not is_normalized("NFC", text) for text in texts]
    return is_decomposed
