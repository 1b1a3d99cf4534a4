"""Divide a corpus into pieces, the units of work: parts of large files, or a few small files each.

If a file is added, the pieces of the others mostly stay the same: a piece depends on its own files;
the number and size of all files matter only when they double.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import to_builtins

from elmo.data.tokenizer import Tokenization
from elmo.io.location import Location, in_parallel
from elmo.io.records import digest

from ..settings.params import TokenizeSettings
from .accounting import Accounting
from .documents import DocumentBlock, read_documents
from .formats import resolve_document_rule
from .held_out import HeldOutRule
from .input_files import InputFile
from .reader import KeptColumns, ReadOptions, load_reader
from .spans import FileSpan, text_bytes
from .utf8_lines import BLOCK_BYTES

MAX_PIECES = 1 << 13  # about so many per corpus
MAX_PIECE_BYTES = 2**31  # because Arrow's offsets have 32 bits
_MAX_SEPARATE_FILES = 1 << 8  # up to this number, each file has its own piece

LineRanges = tuple[tuple[int, int], ...]  # the first line of a range, and the one after its last


@dataclass(frozen=True)
class Piece:
    """A piece of the corpus, which one worker tokenizes.

    It has its `number` in the corpus, the spans of files to read, the settings, the rule for
    held-out documents, and the folder for its shards. `column` names the text column of records,
    `tokenizer` is as in the manifest, and `version` is that of the stage. Lines in the ranges of
    `excluded_lines` (by reason) or with a hash in `repeated_lines` are left out. `keep` names
    columns of records to keep with the sentences. `copy_number` distinguishes pieces with the same
    text.
    """

    number: int
    spans: tuple[FileSpan, ...]
    folder: Location
    params: TokenizeSettings
    rule: HeldOutRule
    column: str
    tokenizer: Tokenization
    version: int
    excluded_lines: tuple[tuple[str, LineRanges], ...] = ()
    repeated_lines: tuple[int, ...] = ()
    keep: KeptColumns = ()
    copy_number: int = 0

    def read_documents(
        self, accounting: Accounting, keep: KeptColumns = ()
    ) -> Iterator[tuple[DocumentBlock, npt.NDArray[np.bool_]]]:
        """Yield the piece's blocks, each with a mask of the documents in it that are held out.

        The first one is the document that continues from the previous block.
        """
        size = min(BLOCK_BYTES, self.params.shard_bytes)
        for span in self.spans:
            document_rule = resolve_document_rule(self.rule.documents, span.input.format)
            options, is_heldout = ReadOptions(self.column, document_rule, size, keep), False
            for block in read_documents(span, options, accounting):
                heldout = np.append(is_heldout, self.rule.are_heldout(block.hashes))
                is_heldout = bool(heldout[-1])
                yield block, heldout

    @property
    def divided_bytes(self) -> int:
        """Return the file's size if it is one document and this piece is a part of it, else 0."""
        span = self.spans[0]
        is_whole = span.start == 0 and span.stop in (-1, span.input.bytes)
        return 0 if is_whole or self.rule.documents != "file" else text_bytes(span.input)

    @cached_property
    def digest(self) -> str:
        """Return a digest of everything that the piece's shards depend on.

        It does not cover the piece's position in the corpus or other files.
        """
        spans = [
            (span.input.sha256, span.input.format, span.input.compression, span.start, span.stop)
            for span in self.spans
        ]
        dependencies = [
            spans,
            self.column,
            self.params.shard_bytes,
            self.version,
            self.excluded_lines,
            self.repeated_lines,
            self.keep,
            self.copy_number,
        ]
        rule = {"documents": self.rule.documents, "below": self.rule.threshold}
        return digest([*dependencies, rule, to_builtins(self.tokenizer)])

    @property
    def result_name(self) -> str:
        """Return the name of the file with the piece's result, written after all its shards."""
        return f".{self.digest}.json"


def number_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, with `copy_number` set if an earlier piece has the same text."""
    count_by_digest: Counter[str] = Counter()
    numbered_pieces = []
    for piece in pieces:
        copy = count_by_digest[piece.digest]
        numbered_pieces.append(replace(piece, copy_number=copy) if copy else piece)
        count_by_digest[piece.digest] += 1
    return numbered_pieces


def choose_piece_bytes(inputs: Sequence[InputFile], *, shard_bytes: int) -> int:
    """Return how many bytes of text a piece holds: `shard_bytes`, or more for a large text.

    This bounds the number of pieces, so manifests, which name every shard, stay small.
    """
    text_size = sum(map(text_bytes, inputs))
    while shard_bytes * MAX_PIECES < text_size and shard_bytes < MAX_PIECE_BYTES:
        shard_bytes *= 2
    return min(shard_bytes, MAX_PIECE_BYTES)


def plan_pieces(
    inputs: Sequence[InputFile], *, shard_bytes: int, documents: str
) -> list[tuple[FileSpan, ...]]:
    """Divide a corpus into pieces: tuples of spans with about `shard_bytes` of text.

    Large files are divided at line ends. Up to 256 files have their own pieces; with more files,
    small neighbours share a piece. Digests decide where a shared piece ends: with up to 512 files,
    after 1 in 2; with up to 1,024, after 1 in 4. `documents` is the setting of `tokenize`; if blank
    lines separate documents, no document is divided.
    """
    files = [input_ for input_ in inputs if input_.bytes]
    end_interval = 1 << (max(len(files) - 1, 0) // _MAX_SEPARATE_FILES).bit_length()
    pieces: list[tuple[FileSpan, ...]] = []
    open_piece: list[FileSpan] = []

    def divide_file(file_number: int) -> list[FileSpan]:
        file = files[file_number]
        document_rule = resolve_document_rule(documents, file.format)
        return load_reader(file).spans(file, file_number, shard_bytes, document_rule)

    def close_piece() -> None:
        if open_piece:
            pieces.append(tuple(open_piece))
            open_piece.clear()

    for file, spans in zip(files, in_parallel(divide_file, range(len(files))), strict=True):
        for span in spans:
            if len(spans) > 1 or sum(s.size for s in open_piece) + span.size > shard_bytes:
                close_piece()
            open_piece.append(span)
        if len(spans) > 1 or int(file.sha256[:8], 16) % end_interval == 0:
            close_piece()
    close_piece()
    return pieces
