"""Documents: the units of text that are held out or trained on as a whole.

Where text is divided into pieces (`spans`) and blocks (`text_blocks`, `utf8_lines.block_end`), the
cuts follow the same rule.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .spans import FileSpan
from .text_blocks import TextBlock
from .text_hashes import Hashes, hash_runs
from .text_rows import TextRows

_HASHED = 1 << 16  # bytes at the beginning of a document that its hash covers


@dataclass(frozen=True)
class BlockDocuments:
    """The documents that begin in a block, by their `hashes` (0: without text).

    `number` has for each line the number of its document, from 1; 0 is the document that continues
    from the previous block.
    """

    number: Int64s
    hashes: Hashes


class Documents:
    """Finds the documents in the blocks of a text, which must be passed in order."""

    def __init__(self) -> None:
        self._started = False
        self._blank_before = False
        self._text_seen = False

    def find(
        self,
        block: TextBlock,
        lines: tuple[Int64s, Int64s],
        rows: TextRows,
        *,
        span: FileSpan,
        rule: str,
    ) -> BlockDocuments:
        """Return the documents of a block; `rule` is the result of `document_rule`.

        `lines` has the begins and ends of the lines, `rows` their text, `span` the source of the
        block. A document is hashed by its lines that begin in its first 64 KiB, or by the file's
        digest with the rule "file".
        """
        starts = lines[0]
        if rule == "file":
            begins = int(block.begins or not self._started)
            self._started = True
            of_file = np.array([int(span.input.sha256[:16], 16)], np.uint64)
            return BlockDocuments(np.full(len(starts), begins, np.int64), of_file[:begins])
        is_first_line = self._find_first_lines(block, rows.counts == 0, rule)
        number = np.cumsum(is_first_line, dtype=np.int64)
        begin = starts[is_first_line]
        hashes = rows.hashes
        if len(begin) < len(starts):
            limits = np.append(0, begin + _HASHED)[number]
            is_hashed = (hashes != 0) & (starts < limits)
            counts = np.bincount(number[is_hashed], minlength=len(begin) + 1)[1:]
            hashes = hash_runs(hashes[is_hashed], counts)
        return BlockDocuments(number, hashes)

    def _find_first_lines(
        self, block: TextBlock, blank: npt.NDArray[np.bool_], rule: str
    ) -> npt.NDArray[np.bool_]:
        """Tell for each line whether it begins a document."""
        if rule == "line":
            self._started = True
            if block.records is None:
                return np.ones(len(blank), bool)
            return np.diff(block.records.numbers, prepend=block.records.numbers[:1] - 1) > 0
        if block.begins:
            self._text_seen = self._blank_before = False
        follows_blank = np.append(self._blank_before, blank[:-1])
        text_seen = np.append(self._text_seen, ~blank).cumsum()[:-1] > 0
        is_first_line = ~blank & follows_blank & text_seen
        if block.begins or not self._started:
            is_first_line[0] = True
        self._started = True
        self._blank_before, self._text_seen = bool(blank[-1]), bool(text_seen[-1] or not blank[-1])
        return is_first_line
