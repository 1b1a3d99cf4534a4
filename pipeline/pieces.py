"""One piece of a text → its shards: all that a tokenizing task does, on its own.

A piece numbers its sentences and documents from 0. What stands between white space is split once
for each distinct stretch; the rest is array work.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
            shard.add(block.text, lines, of_line, heldout, split, hashes)
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


@dataclass(frozen=True)
class _Part:
    """Some lines of a shard: their stretches between white space, and what is known of them.

    Of each row: how many stretches it has, which line it comes from, and a hash of its text. Of
    each line: its bytes, its document, and whether that is held out.
    """

    stretches: pa.DictionaryArray
    stretches_of: Ints
    line_of: Ints
    hashes: npt.NDArray[np.uint64]
    line_bytes: Ints
    documents: Ints
    heldout: npt.NDArray[np.bool_]
    lost: int


class _Shard:
    """The lines of one shard while it is filled; they are tokenized together when it is full."""

    def __init__(self, words: Tokenizer) -> None:
        self.words = words
        self.bytes = 0
        self._parts: list[_Part] = []

    def add(
        self,
        text: bytes,
        lines: tuple[Ints, Ints],
        documents: Ints,
        heldout: npt.NDArray[np.bool_],
        split: Callable[[str], list[str]] | None,
        hashes: npt.NDArray[np.uint64] | None,
    ) -> None:
        """Take in whole lines, each with its document; `split` cuts them into sentences."""
        self.bytes += len(text)
        rows, line_of = lines, np.arange(len(documents))
        if split is not None:
            text, line_of = _sentences(text, split)
            rows, hashes = _lines(text), None
        if self.words.apart:
            stretches, stretches_of = _stretches(text, rows)
            lost = 0
        else:
            stretches, stretches_of, lost = _tokens(text, self.words)
        self._parts.append(
            _Part(
                stretches=stretches,
                stretches_of=stretches_of,
                line_of=line_of,
                hashes=_hashes(text, rows) if hashes is None else hashes,
                line_bytes=lines[1] - lines[0],
                documents=documents,
                heldout=heldout,
                lost=lost,
            )
        )

    def write(self, piece: Piece, result: Result) -> None:
        """Write what was taken in as one shard a split, numbered from the piece's start."""
        if not self._parts:
            return
        types, filled = self._tokenized(result.books)
        ids = np.concatenate([ids for ids, _ in filled])
        lengths = np.concatenate([lengths for _, lengths in filled])
        hashes = np.concatenate([part.hashes for part in self._parts])
        result.quality.add(types, ids, lengths, hashes[hashes % piece.sample == 0])
        written = result.books["written"]
        places = np.arange(written, written + len(lengths))
        result.books["written"] += len(lengths)
        heldout = np.concatenate([part.heldout[part.line_of] for part in self._parts])
        documents = np.concatenate([part.documents[part.line_of] for part in self._parts])
        for split, chosen in (("train", ~heldout), ("heldout", heldout)):
            if not chosen.any():
                continue
            some = ids if chosen.all() else ids[np.repeat(chosen, lengths)]
            name = f"{piece.number:06d}-{len(result.shards):06d}"
            write_shard(
                piece.folder / name,
                sentence_ids=places[chosen],
                document_ids=documents[chosen],
                offsets=np.cumsum(np.append(0, lengths[chosen])).astype(np.int32),
                tokens=_encode(some, types),
            )
            result.shards.append((name, split))

    def _tokenized(
        self, books: Counter[str]
    ) -> tuple[pa.StringArray, list[tuple[npt.NDArray[np.int32], Ints]]]:
        """The distinct tokens, and of each part all tokens as ids and how many each row has."""
        known = pa.concat_arrays([part.stretches.dictionary for part in self._parts])
        distinct = known.dictionary_encode()
        types, pieces, counts, lost = _pieces(distinct.dictionary, self.words)
        begins = np.cumsum(counts) - counts
        sizes = _sizes(types)
        filled = []
        first = 0
        for part in self._parts:
            numbers = distinct.indices.to_numpy()[first : first + len(part.stretches.dictionary)]
            first += len(numbers)
            stretches = numbers[part.stretches.indices.to_numpy()]
            of_stretch = counts[stretches]
            after = np.append(0, np.cumsum(of_stretch))
            spots = np.repeat(begins[stretches] - after[:-1], of_stretch)
            ids = pieces[spots + np.arange(len(spots))]
            lengths = np.diff(after[np.append(0, np.cumsum(part.stretches_of))])
            _account(books, part, sizes[ids], lengths, part.lost + int(lost[stretches].sum()))
            filled.append((ids, lengths))
        return types, filled


def _account(books: Counter[str], part: _Part, sizes: Ints, lengths: Ints, lost: int) -> None:
    """Add a part's lines to the books, given its tokens' bytes and its rows' tokens."""
    blank = np.bincount(part.line_of, lengths, len(part.line_bytes)) == 0
    in_tokens = int(sizes.sum(dtype=np.int64))
    books.update(
        {
            "lines": len(part.line_bytes),
            "blank_lines": int(blank.sum()),
            "blank_bytes": int(part.line_bytes[blank].sum()),
            "token_bytes": in_tokens,
            "space_bytes": int(part.line_bytes[~blank].sum()) - in_tokens - lost,
            "lost_bytes": lost,
            "sentences": len(lengths),
            "tokens": len(sizes),
        }
    )


def _stretches(text: bytes, rows: tuple[Ints, Ints]) -> tuple[pa.DictionaryArray, Ints]:
    """What stands between ASCII white space, and how many stretches each row has."""
    data = np.frombuffer(text, np.uint8)
    stands = ~_SPACE[data]
    turns = np.flatnonzero(stands[1:] != stands[:-1]) + 1
    turns = np.append(0, turns) if stands[0] else turns
    begins, sizes = turns[::2], turns[1::2] - turns[::2]
    ends = np.cumsum(np.append(0, sizes)).astype(np.int32)
    stretches = pa.StringArray.from_buffers(
        len(sizes), pa.py_buffer(ends), pa.py_buffer(data[stands])
    )
    return stretches.dictionary_encode(), np.diff(np.searchsorted(begins, rows[1]), prepend=0)


def _tokens(text: bytes, words: Tokenizer) -> tuple[pa.DictionaryArray, Ints, int]:
    """The tokens of whole rows, how many each has, and the bytes that stand in none."""
    texts = text.decode("utf-8").split("\n")[:-1]
    found = words.split(texts)
    tokens = pa.array([token for tokens in found for token in tokens], pa.string())
    lost = sum(_lost(text, tokens) for text, tokens in zip(texts, found, strict=True))
    return tokens.dictionary_encode(), np.array([len(tokens) for tokens in found]), lost


def _pieces(
    stretches: pa.StringArray, words: Tokenizer
) -> tuple[pa.StringArray, npt.NDArray[np.int32], Ints, Ints]:
    """Split each distinct stretch: the distinct tokens, all stretches' tokens as ids end to end,
    and of each stretch how many tokens and how many lost bytes it has.
    """
    if not words.apart:
        every = np.arange(len(stretches), dtype=np.int32)
        return stretches, every, np.ones(len(every), np.int64), np.zeros(len(every), np.int64)
    texts = stretches.to_pylist()
    found = words.split(texts)
    tokens = pa.array([token for tokens in found for token in tokens], pa.string())
    encoded = tokens.dictionary_encode()
    counts = np.array([len(tokens) for tokens in found], np.int64)
    owners = np.repeat(np.arange(len(texts)), counts)
    in_tokens = np.bincount(owners, _sizes(tokens), len(texts))
    lost = np.zeros(len(texts), np.int64)
    for i in np.flatnonzero(in_tokens != _sizes(stretches)).tolist():
        lost[i] = _lost(texts[i], found[i])
    return encoded.dictionary, encoded.indices.to_numpy(), counts, lost


def _sizes(strings: pa.StringArray) -> npt.NDArray[np.int32]:
    """How many bytes each string has."""
    return pc.binary_length(strings).to_numpy()


def _encode(ids: npt.NDArray[np.int32], types: pa.StringArray) -> pa.DictionaryArray:
    """Tokens over exactly the types that occur, in the order of their first occurrence."""
    first = np.full(len(types), len(ids), np.int32)
    first[ids[::-1]] = np.arange(len(ids) - 1, -1, -1, dtype=np.int32)
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
