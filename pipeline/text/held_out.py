"""The rule that chooses which documents are held out, made before the text is divided.

A document is held out if its hash is below a threshold, so it stays on its side when text is added.
If this would hold out no document, the one with the lowest hash is held out; if all, the one with
the highest is not. With `documents: auto`, each line is a document if one document has more than an
eighth of the text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError

from ..settings.params import TokenizeSettings
from ..terminal.progress import say
from .accounting import Accounting
from .documents import read_documents
from .formats import resolve_document_rule
from .input_files import InputFile
from .reader import ReadOptions
from .spans import file_as_span, text_bytes
from .text_hashes import Hashes
from .utf8_lines import BLOCK_BYTES

MIN_HELD_OUT_TOKENS = 2000  # with fewer, chance changes a perplexity by several per cent
_MAX_MEASURED_BYTES = 64_000_000  # bytes of a text searched for a large document
_MAX_DOCUMENT_SHARE = 1 / 8  # the largest share of a text in one document


@dataclass(frozen=True)
class HeldOutRule:
    """The rule that divides a text: documents whose hash is below `threshold` are held out.

    `documents` is the setting of `tokenize`, which `resolve_document_rule` reads.
    """

    documents: str
    threshold: int

    def are_heldout(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Tell for each document, by its hash, whether it is held out; one without text is not."""
        return (hashes != 0) & (hashes < np.uint64(self.threshold))


def choose_held_out_rule(
    inputs: Sequence[InputFile], params: TokenizeSettings, *, column: str, is_independent: bool
) -> HeldOutRule:
    """Return the rule for a text, from the settings and the beginning of the text.

    If the text is not `is_independent`, another text shares some of its files. Each must be on the
    same side in both, so the settings alone decide. Raises `ElmoError` if nothing would be held
    out, or nothing trained on.
    """
    rule = HeldOutRule(params.documents, int(params.heldout * 2**64))
    size = min(BLOCK_BYTES, params.shard_bytes)
    if not rule.threshold:
        return rule
    if is_independent and params.documents == "auto" and _has_large_document(inputs, column, size):
        say(f"{inputs[0].url}: one document has over 1/8 of the text, so each line is a document")
        rule = HeldOutRule("line", rule.threshold)
    min_hash, max_hash = 2**64, 0
    for hashes, _ in _measure_documents(inputs, rule.documents, column, size):
        if len(hashes := hashes[hashes != 0]):
            min_hash, max_hash = min(min_hash, int(hashes.min())), max(max_hash, int(hashes.max()))
        if min_hash < rule.threshold <= max_hash:
            return rule
    threshold = min_hash + 1 if min_hash >= rule.threshold else max_hash
    if min_hash < threshold <= max_hash and is_independent:
        return HeldOutRule(rule.documents, threshold)
    problem, remedy = "no document is", "raise it"
    if min_hash < rule.threshold:
        problem, remedy = "all documents are", "lower it"
    raise ElmoError(
        f"{inputs[0].url}: {problem} held out with tokenize.heldout {params.heldout}; {remedy}, "
        "set tokenize.documents to line, or name more text"
    )


def _has_large_document(inputs: Sequence[InputFile], column: str, size: int) -> bool:
    """Tell whether the beginning of a plain text has a document that is too large."""
    plain_texts = [
        input_ for input_ in inputs if resolve_document_rule("auto", input_.format) == "blank"
    ]
    total = sum(map(text_bytes, inputs))
    bytes_read = longest_document = partial_size = 0
    for _, sizes in _measure_documents(plain_texts, "auto", column, size):
        partial_size += int(sizes[0])
        longest_document = max(longest_document, partial_size, int(sizes[1:].max(initial=0)))
        partial_size = int(sizes[-1]) if len(sizes) > 1 else partial_size
        bytes_read += int(sizes.sum())
        if bytes_read > _MAX_MEASURED_BYTES or longest_document > _MAX_DOCUMENT_SHARE * total:
            break
    return longest_document > _MAX_DOCUMENT_SHARE * total or (
        bytes_read > _MAX_MEASURED_BYTES and longest_document == bytes_read
    )


def _measure_documents(
    inputs: Iterable[InputFile], documents: str, column: str, size: int
) -> Iterator[tuple[Hashes, npt.NDArray[np.int64]]]:
    """Yield for each block the hashes of documents that begin in it, and the sizes of all parts.

    The first size is that of the document that continues from the previous block.
    """
    for file_number, input_ in enumerate(inputs):
        document_rule = resolve_document_rule(documents, input_.format)
        if document_rule == "file":
            yield np.array([int(input_.sha256[:16], 16)], np.uint64), np.array([0, input_.bytes])
            continue
        span, options = file_as_span(input_, file_number), ReadOptions(column, document_rule, size)
        for block in read_documents(span, options, Accounting()):
            line_sizes = block.lines[1] - block.lines[0] + 1
            sizes = np.bincount(block.document_numbers, line_sizes, len(block.hashes) + 1)
            yield block.hashes, sizes.astype(np.int64)
