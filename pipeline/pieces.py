"""One piece of a text → its shards: all that a tokenizing task does, on its own.

A piece numbers its sentences and documents from 0. What stands between white space is split once
for each distinct stretch; the rest is array work.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from elmo.shards import SPLITS, write_shard
from pipeline.params import Tokenize
from pipeline.quality import Report
from pipeline.splitters import Tokenizer, sentence_splitter, tokenizer
from pipeline.text import BLOCK, Block, Span, read_blocks

_HASHED = 1 << 16
_NEWLINE = 10
_SPACE = np.zeros(256, bool)
_SPACE[[9, 10, 11, 12, 13, 32]] = True

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """What one task needs: which spans to read, how, and where to leave its shards."""

    number: int
    spans: tuple[Span, ...]
    folder: Path
    params: Tokenize
    column: str
    sample: int


@dataclass
class Result:
    """What one task found. `shards` are (file, split) with ids counted from the piece's start."""

    shards: list[tuple[str, str]] = field(default_factory=list)
    books: Counter[str] = field(default_factory=Counter)
    quality: Report = field(default_factory=Report)


def tokenize_piece(piece: Piece) -> Result:
    """Tokenize one piece of the corpus and write its shards; all that a worker does."""
    result = Result()
    words = tokenizer(piece.params.tokenizer)
    split = sentence_splitter()[0] if piece.params.sentences == "split" else None
    documents = _Documents(piece.params)
    shard = _Shard(words)
    for span in piece.spans:
        blocks = read_blocks(
            span,
            column=piece.column,
            documents=piece.params.documents,
            size=min(BLOCK, piece.params.shard_bytes),
            books=result.books,
        )
        for block in blocks:
            if shard.bytes >= piece.params.shard_bytes:
                shard.write(piece, result)
                shard = _Shard(words)
            lines = _lines(block.text)
            hashes = None
            if "line" in (piece.params.documents, piece.params.sentences):
                hashes = _hashes(block.text, lines)
            of_line, heldout = documents.assign(block, lines, span, hashes, result.books)
            shard.add(block.text, lines, of_line, heldout, split, hashes, result.books)
    shard.write(piece, result)
    result.books["documents"] = documents.seen
    return result


class _Documents:
    """Which document a line belongs to and whether that is held out; goes from block to block."""

    def __init__(self, params: Tokenize) -> None:
        self.kind = params.documents
        self.below = np.uint64(int(params.heldout * 2**64))
        self.seen = 0
        self._heldout = False
        self._blank_before = False
        self._text_seen = False

    def assign(
        self,
        block: Block,
        lines: tuple[Ints, Ints],
        span: Span,
        hashes: npt.NDArray[np.uint64] | None,
        books: Counter[str],
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The document id and the held-out mark of each line of a block."""
        starts, ends = lines
        if self.kind == "file":
            self._heldout = bool(np.uint64(int(span.input.sha256[:16], 16)) < self.below)
            if block.begins:
                books[f"documents.{SPLITS[self._heldout]}"] += 1
            return np.full(len(starts), span.document), np.full(len(starts), self._heldout)
        first = self._firsts(block, starts, ends)
        heads = np.flatnonzero(first)
        tails = np.append(heads[1:], len(starts)) - 1
        if hashes is None or len(heads) < len(starts):
            known_by = np.minimum(ends[tails], starts[heads] + _HASHED)
            hashes = _hashes(block.text, (starts[heads], known_by))
        heldout = np.append(self._heldout, (hashes != 0) & (hashes < self.below))
        books["documents.heldout"] += int(heldout[1:].sum())
        books["documents.train"] += int((~heldout[1:] & (hashes != 0)).sum())
        number = np.cumsum(first)
        ids = number + (self.seen - 1)
        self.seen += len(heads)
        self._heldout = bool(heldout[-1])
        return ids, heldout[number]

    def _firsts(self, block: Block, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
        """Which lines begin a document."""
        if self.kind == "line":
            if block.records is None:
                return np.ones(len(starts), bool)
            return np.diff(block.records, prepend=block.records[:1] - 1) > 0
        if block.begins:
            self._text_seen = self._blank_before = False
        blank = _blank(block.text, starts, ends)
        before = np.append(self._blank_before, blank[:-1])
        text_seen = np.append(self._text_seen, ~blank).cumsum()[:-1] > 0
        first = ~blank & before & text_seen
        if block.begins or not self.seen:
            first[0] = True
        self._blank_before, self._text_seen = bool(blank[-1]), bool(text_seen[-1] or not blank[-1])
        return first


class _Shard:
    """The sentences of one shard while it is filled, and the tokens seen in it."""

    def __init__(self, words: Tokenizer) -> None:
        self.words = words
        self.bytes = 0
        self.types: dict[str, int] = {}
        self._sizes = array("i")
        self._stretches: dict[str, int] = {}
        self._begins, self._pieces, self._lost = array("i", [0]), array("i"), array("i")
        self._ids: list[npt.NDArray[np.int32]] = []
        self._lengths: list[Ints] = []
        self._documents: list[Ints] = []
        self._heldout: list[npt.NDArray[np.bool_]] = []
        self._hashes: list[npt.NDArray[np.uint64]] = []

    def add(
        self,
        text: bytes,
        lines: tuple[Ints, Ints],
        documents: Ints,
        heldout: npt.NDArray[np.bool_],
        split: Callable[[str], list[str]] | None,
        hashes: npt.NDArray[np.uint64] | None,
        books: Counter[str],
    ) -> None:
        """Take in whole lines, each with its document; books are kept line by line."""
        self.bytes += len(text)
        rows, of_row = lines, np.arange(len(documents))
        if split is not None:
            text, of_row = _sentences(text, split)
            rows = _lines(text)
        ids, offsets, lost = self._tokens(text, rows)
        lengths = np.diff(offsets)
        self._ids.append(ids)
        self._lengths.append(lengths)
        self._documents.append(documents[of_row])
        self._heldout.append(heldout[of_row])
        self._hashes.append(_hashes(text, rows) if split or hashes is None else hashes)
        blank = np.bincount(of_row, lengths, len(documents)) == 0
        sizes = lines[1] - lines[0]
        in_tokens = int(np.array(self._sizes)[ids].sum(dtype=np.int64))
        books.update(
            {
                "lines": len(documents),
                "token_bytes": in_tokens,
                "blank_lines": int(blank.sum()),
                "blank_bytes": int(sizes[blank].sum()),
                "space_bytes": int(sizes[~blank].sum()) - in_tokens - lost,
                "lost_bytes": lost,
                "sentences": len(lengths),
                "tokens": len(ids),
            }
        )

    def write(self, piece: Piece, result: Result) -> None:
        """Write what was taken in as one shard a split, numbered from the piece's start."""
        if not self._lengths:
            return
        ids, lengths = np.concatenate(self._ids), np.concatenate(self._lengths)
        types, hashes = list(self.types), np.concatenate(self._hashes)
        sizes = np.array(self._sizes, np.int64)
        result.quality.add(types, sizes, ids, lengths, hashes[hashes % piece.sample == 0])
        written = result.books["written"]
        places = np.arange(written, written + len(lengths))
        result.books["written"] += len(lengths)
        heldout, documents = np.concatenate(self._heldout), np.concatenate(self._documents)
        types_array = pa.array(types, pa.string())
        for split, chosen in (("train", ~heldout), ("heldout", heldout)):
            if not chosen.any():
                continue
            some = ids[np.repeat(chosen, lengths)]
            name = f"{piece.number:06d}-{len(result.shards):06d}"
            write_shard(
                piece.folder / name,
                sentence_ids=places[chosen],
                document_ids=documents[chosen],
                offsets=np.cumsum(np.append(0, lengths[chosen])).astype(np.int32),
                tokens=_encode(some, types_array),
            )
            result.shards.append((name, split))

    def _tokens(
        self, text: bytes, rows: tuple[Ints, Ints]
    ) -> tuple[npt.NDArray[np.int32], Ints, int]:
        """Type ids of all tokens, where each row begins in them, and bytes that no token holds."""
        if not self.words.apart:
            return self._whole_rows(text, rows)
        data = np.frombuffer(text, np.uint8)
        stands = ~_SPACE[data]
        turns = np.flatnonzero(stands[1:] != stands[:-1]) + 1
        turns = np.append(0, turns) if stands[0] else turns
        begins, sizes = turns[::2], turns[1::2] - turns[::2]
        ends = np.cumsum(np.append(0, sizes)).astype(np.int32)
        stretches = pa.StringArray.from_buffers(
            len(sizes), pa.py_buffer(ends), pa.py_buffer(data[stands])
        ).dictionary_encode()
        known = self._know(stretches.dictionary.to_pylist())[stretches.indices.to_numpy()]
        cuts, pieces = np.array(self._begins), np.array(self._pieces)
        counts = np.diff(cuts)[known]
        after = np.append(0, np.cumsum(counts))
        spots = np.repeat(cuts[known] - after[:-1], counts) + np.arange(after[-1])
        offsets = after[np.append(0, np.searchsorted(begins, rows[1]))]
        return pieces[spots], offsets, int(np.array(self._lost)[known].sum())

    def _whole_rows(
        self, text: bytes, rows: tuple[Ints, Ints]
    ) -> tuple[npt.NDArray[np.int32], Ints, int]:
        texts = text.decode("utf-8").split("\n")[:-1]
        found = self.words.split(texts)
        ids = np.array([self._type(token) for tokens in found for token in tokens], np.int32)
        lost = sum(_lost(text, tokens) for text, tokens in zip(texts, found, strict=True))
        return ids, np.cumsum([0, *map(len, found)]), lost

    def _know(self, stretches: list[str]) -> Ints:
        """The number of each stretch, splitting those that are new."""
        new = [stretch for stretch in stretches if stretch not in self._stretches]
        for stretch, tokens in zip(new, self.words.split(new), strict=True):
            self._stretches[stretch] = len(self._stretches)
            self._pieces.extend([self._type(token) for token in tokens])
            self._begins.append(len(self._pieces))
            self._lost.append(_lost(stretch, tokens))
        return np.array([self._stretches[stretch] for stretch in stretches], np.int64)

    def _type(self, token: str) -> int:
        number = self.types.setdefault(token, len(self.types))
        if number == len(self._sizes):
            self._sizes.append(len(token.encode("utf-8")))
        return number


def _encode(ids: npt.NDArray[np.int32], types: pa.StringArray) -> pa.DictionaryArray:
    """Tokens over exactly the types that occur, in the order of their first occurrence."""
    first = np.full(len(types), len(ids), np.int64)
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: int((first < len(ids)).sum())]
    renumber = np.zeros(len(types), np.int32)
    renumber[order] = np.arange(len(order))
    return pa.DictionaryArray.from_arrays(pa.array(renumber[ids]), types.take(pa.array(order)))


def _lines(text: bytes) -> tuple[Ints, Ints]:
    """Where each line begins and ends (its newline not counted)."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
    return np.append(0, ends[:-1] + 1), ends


def _sentences(text: bytes, split: Callable[[str], list[str]]) -> tuple[bytes, Ints]:
    """The text with a sentence a line, and which line each sentence comes from."""
    sentences: list[str] = []
    counts = []
    for line in text.decode("utf-8").split("\n")[:-1]:
        found = split(line)
        sentences.extend(found)
        counts.append(len(found))
    sentences.append("")
    return "\n".join(sentences).encode("utf-8"), np.repeat(np.arange(len(counts)), counts)


def _blank(text: bytes, starts: Ints, ends: Ints) -> npt.NDArray[np.bool_]:
    stands = np.append(0, np.cumsum(~_SPACE[np.frombuffer(text, np.uint8)]))
    return stands[ends] == stands[starts]


def _hashes(text: bytes, rows: tuple[Ints, Ints]) -> npt.NDArray[np.uint64]:
    """A hash of each row's text; 0 where there is none."""
    found = (text[a:b].strip() for a, b in zip(*(x.tolist() for x in rows), strict=True))
    return np.array([_hash(row) if row else 0 for row in found], np.uint64)


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _lost(text: str, tokens: Iterable[str]) -> int:
    """How many bytes that are not white space stand in no token."""
    joined = "".join(tokens)
    if joined == text:
        return 0
    return max(0, len("".join(text.split()).encode()) - len(joined.encode()))
