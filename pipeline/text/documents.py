"""Documents: the units of text that are held out or learned from as a whole.

Those who cut a text into blocks and pieces keep to it: `spans` (pieces), `text_blocks` (blocks) and
`utf8_lines` (`block_end`).
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s

from .accounting import Accounting
from .formats import FORMATS
from .text_hashes import Hashes, hash_runs

if TYPE_CHECKING:
    from .spans import FileSpan
    from .text_blocks import TextBlock

_HASHED = 1 << 16  # bytes of a document, from its beginning, that its hash is of


def document_rule(documents: str, format_: str) -> str:
    """Return what a document is in a file of this format: `file`, `line` or `blank`.

    `documents` is the setting of `tokenize`, `format_` a name in `FORMATS`. `auto` becomes the
    format's own rule: what blank lines divide (`blank`) in plain text, else a record (`line`).
    """
    if documents != "auto":
        return documents
    return FORMATS[format_].documents


class Documents:
    """The documents of one piece: which one each line belongs to, and whether that is held out.

    `heldout` is the share of documents to hold out, by their hashes, whose extremes are kept as
    `lowest` and `highest`. Documents are counted in `accounting`. One that goes on in the next
    block is remembered, so blocks must come in order.
    """

    def __init__(self, heldout: float, accounting: Accounting) -> None:
        self.below = np.uint64(int(heldout * 2**64))
        self.accounting = accounting
        self.lowest, self.highest = 2**64 - 1, 0
        self._heldout = False
        self._blank_before = False
        self._text_seen = False

    def assign(
        self,
        block: "TextBlock",
        starts: Int64s,
        words: Int64s,
        hashes_of: Hashes,
        *,
        span: "FileSpan",
        rule: str,
    ) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """Return the document id of each line of a block, and whether it is held out.

        Of each line `starts` is where it begins in the block, `words` how many stretches between
        white space it has, and `hashes_of` their hash, 0 of a blank line. `span` is what the block
        was read from, `rule` the result of `document_rule`. Ids count from 0 in the piece; with the
        rule "file" they are the files' numbers in the corpus. The hash of a document is that of its
        lines that begin in its first 64 KiB.
        """
        if rule == "file":
            hash_ = np.uint64(int(span.input.sha256[:16], 16))
            self._heldout = bool(hash_ < self.below)
            if block.begins:
                self._count(np.array([hash_]))
            return np.full(len(starts), span.document), np.full(len(starts), self._heldout)
        first = self._firsts(block, words == 0, rule)
        number = np.cumsum(first)
        begins = starts[first]
        hashes = hashes_of
        if len(begins) < len(starts):
            limits = np.append(0, begins + _HASHED)[number]
            chosen = (hashes_of != 0) & (starts < limits)
            counts = np.bincount(number[chosen], minlength=len(begins) + 1)[1:]
            hashes = hash_runs(hashes_of[chosen], counts)
        heldout = np.append(self._heldout, (hashes != 0) & (hashes < self.below))
        self._count(hashes[hashes != 0])
        ids = number + (self.accounting.document_ids - 1)
        self.accounting.document_ids += len(begins)
        self._heldout = bool(heldout[-1])
        return ids, heldout[number]

    def _count(self, hashes: Hashes) -> None:
        """Count documents with text by their hashes."""
        heldout = int((hashes < self.below).sum())
        self.accounting.heldout_documents += heldout
        self.accounting.train_documents += len(hashes) - heldout
        if len(hashes):
            self.lowest = min(self.lowest, int(hashes.min()))
            self.highest = max(self.highest, int(hashes.max()))

    def _firsts(
        self, block: "TextBlock", blank: npt.NDArray[np.bool_], rule: str
    ) -> npt.NDArray[np.bool_]:
        """Return which lines begin a document."""
        if rule == "line":
            if block.records is None:
                return np.ones(len(blank), bool)
            return np.diff(block.records, prepend=block.records[:1] - 1) > 0
        if block.begins:
            self._text_seen = self._blank_before = False
        before = np.append(self._blank_before, blank[:-1])
        text_seen = np.append(self._text_seen, ~blank).cumsum()[:-1] > 0
        first = ~blank & before & text_seen
        if block.begins or not self.accounting.document_ids:
            first[0] = True
        self._blank_before, self._text_seen = bool(blank[-1]), bool(text_seen[-1] or not blank[-1])
        return first
