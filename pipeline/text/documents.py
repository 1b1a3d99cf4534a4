"""Documents: the units of text that are held out or learned from as a whole.

Those who cut a text into blocks and pieces keep to it: `spans` (pieces), `text_blocks` (blocks) and
`utf8_lines` (`block_end`).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .spans import FileSpan
from .text_blocks import TextBlock
from .text_hashes import Hashes, hash_runs
from .text_rows import TextRows

_HASHED = 1 << 16  # bytes of a document, from its beginning, that its hash is of


@dataclass(frozen=True)
class BlockDocuments:
    """The documents that begin in a block, by their `hashes`: 0 of one without text.

    `number` says of each line to which of them it belongs, from 1; 0 is the document that goes on
    from the block before.
    """

    number: Int64s
    hashes: Hashes


class Documents:
    """Finds the documents in the blocks of a text, which must come in order."""

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

        `lines` are where each line begins and ends, `rows` what stands in it, `span` what the block
        was read from. The hash of a document is that of its lines that begin in its first 64 KiB;
        with the rule "file" it is of the file's digest.
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
        """Return which lines begin a document."""
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
