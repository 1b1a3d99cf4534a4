"""One piece of a text → its shards: all that a tokenizing task does, on its own.

A piece numbers its sentences and documents from 0. What stands between white space is split once
for each distinct stretch; the rest is array work.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from elmo.shards import SPLITS, write_shard
from pipeline.hashing import Hashes, combine, hash_strings
from pipeline.params import Tokenize
from pipeline.quality import Report
from pipeline.splitters import Tokenizer, sentence_splitter, tokenizer
from pipeline.text import BLOCK, Block, Span, read_blocks

_HASHED = 1 << 16
_NEWLINE = 10
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
            rows = _Rows.of(block.text, lines)
            of_line, heldout = documents.assign(block, lines[0], rows, span, result.books)
            shard.add(block.text, lines, rows, of_line, heldout, split)
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
        self, block: Block, starts: Ints, rows: "_Rows", span: Span, books: Counter[str]
    ) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """The document id and the held-out mark of each line of a block.

        A document is known by those of its lines that begin in its first 64 KiB.
        """
        if self.kind == "file":
            self._heldout = bool(np.uint64(int(span.input.sha256[:16], 16)) < self.below)
            if block.begins:
                books[f"documents.{SPLITS[self._heldout]}"] += 1
            return np.full(len(starts), span.document), np.full(len(starts), self._heldout)
        first = self._firsts(block, rows)
        number = np.cumsum(first)
        begins = starts[first]
        hashes = rows.hashes
        if len(begins) < len(starts):
            limits = np.append(0, begins + _HASHED)[number]
            chosen = (rows.hashes != 0) & (starts < limits)
            counts = np.bincount(number[chosen], minlength=len(begins) + 1)[1:]
            hashes = combine(rows.hashes[chosen], counts)
        heldout = np.append(self._heldout, (hashes != 0) & (hashes < self.below))
        books["documents.heldout"] += int(heldout[1:].sum())
        books["documents.train"] += int((~heldout[1:] & (hashes != 0)).sum())
        ids = number + (self.seen - 1)
        self.seen += len(begins)
        self._heldout = bool(heldout[-1])
        return ids, heldout[number]

    def _firsts(self, block: Block, rows: "_Rows") -> npt.NDArray[np.bool_]:
        """Which lines begin a document."""
        blank = rows.counts == 0
        if self.kind == "line":
            if block.records is None:
                return np.ones(len(blank), bool)
            return np.diff(block.records, prepend=block.records[:1] - 1) > 0
        if block.begins:
            self._text_seen = self._blank_before = False
        before = np.append(self._blank_before, blank[:-1])
        text_seen = np.append(self._text_seen, ~blank).cumsum()[:-1] > 0
        first = ~blank & before & text_seen
        if block.begins or not self.seen:
            first[0] = True
        self._blank_before, self._text_seen = bool(blank[-1]), bool(text_seen[-1] or not blank[-1])
        return first


@dataclass(frozen=True)
class _Rows:
    """Rows of text as stretches between ASCII white space.

    `distinct` holds each stretch at least once, `ids` says which of them stand in the text, and
    `counts` how many in each row.
    """

    distinct: pa.StringArray
    ids: npt.NDArray[np.int32]
    counts: Ints
    hashes: Hashes

    @classmethod
    def of(cls, text: bytes, rows: tuple[Ints, Ints]) -> "_Rows":
        """Find the stretches of each row; the white space after one is cut off only once."""
        data = np.frombuffer(text, np.uint8)
        space = (data == 32) | (data - np.uint8(9) < 5)
        begins = np.flatnonzero(space[:-1] & ~space[1:]) + 1
        begins = begins if space[0] else np.append(0, begins)
        ends = np.append(begins, len(text)).astype(np.int32)
        found = pa.StringArray.from_buffers(len(begins), pa.py_buffer(ends), pa.py_buffer(text))
        encoded = found.dictionary_encode()
        distinct, ids = pc.ascii_rtrim_whitespace(encoded.dictionary), encoded.indices.to_numpy()
        counts = np.diff(np.searchsorted(begins, rows[1]), prepend=0)
        return cls(distinct, ids, counts, combine(hash_strings(distinct)[ids], counts))


@dataclass(frozen=True)
class _Part:
    """Some lines of a shard as rows, a sentence each.

    Of each row: which line it comes from. Of each line: its bytes, its document, and whether that
    is held out. `lost` bytes that are not white space stand in no token.
    """

    rows: _Rows
    line_of: Ints
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
        rows: _Rows,
        documents: Ints,
        heldout: npt.NDArray[np.bool_],
        split: Callable[[str], list[str]] | None,
    ) -> None:
        """Take in whole lines, each with its document; `split` cuts them into sentences."""
        self.bytes += len(text)
        line_of, lost = np.arange(len(documents)), 0
        if split is not None:
            text, line_of = _sentences(text, split)
            rows = _Rows.of(text, _lines(text))
        if not self.words.apart:
            rows, lost = _whole_rows(text, rows, self.words)
        sizes = lines[1] - lines[0]
        self._parts.append(_Part(rows, line_of, sizes, documents, heldout, lost))

    def write(self, piece: Piece, result: Result) -> None:
        """Write what was taken in as one shard a split, numbered from the piece's start."""
        if not self._parts:
            return
        types, filled = self._tokenized(result.books)
        ids = np.concatenate([ids for ids, _ in filled])
        lengths = np.concatenate([lengths for _, lengths in filled])
        hashes = np.concatenate([part.rows.hashes for part in self._parts])
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
        distinct = pa.concat_arrays([part.rows.distinct for part in self._parts])
        distinct = distinct.dictionary_encode()
        types, pieces, begins, counts, lost = _pieces(distinct.dictionary, self.words)
        sizes = _sizes(types)
        filled = []
        first = 0
        for part in self._parts:
            numbers = distinct.indices.to_numpy()[first : first + len(part.rows.distinct)]
            first += len(numbers)
            stretches = numbers[part.rows.ids]
            ids, lengths = _expand(stretches, part.rows.counts, pieces, begins, counts)
            _account(
                books,
                part,
                sizes[ids],
                lengths,
                part.lost + (int(lost[stretches].sum()) if lost.any() else 0),
            )
            filled.append((ids, lengths))
        return types, filled


def _expand(
    stretches: npt.NDArray[np.int32],
    stretches_of: Ints,
    pieces: npt.NDArray[np.int32],
    begins: Ints,
    counts: Ints,
) -> tuple[npt.NDArray[np.int32], Ints]:
    """The tokens of stretches end to end, and how many tokens each row has."""
    if (counts == 1).all():
        return pieces[begins][stretches], stretches_of
    of_stretch = counts[stretches]
    after = np.append(0, np.cumsum(of_stretch))
    spots = np.repeat(begins[stretches] - after[:-1], of_stretch)
    spots += np.arange(len(spots))
    return pieces[spots], np.diff(after[np.append(0, np.cumsum(stretches_of))])


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


def _whole_rows(text: bytes, rows: _Rows, words: Tokenizer) -> tuple[_Rows, int]:
    """The same rows with tokens in the place of stretches, and the bytes that stand in none."""
    texts = text.decode("utf-8").split("\n")[:-1]
    found = words.split(texts)
    tokens = pa.array([token for tokens in found for token in tokens], pa.string())
    encoded = tokens.dictionary_encode()
    counts = np.array([len(tokens) for tokens in found])
    lost = sum(_lost(text, tokens) for text, tokens in zip(texts, found, strict=True))
    return _Rows(encoded.dictionary, encoded.indices.to_numpy(), counts, rows.hashes), lost


def _pieces(
    stretches: pa.StringArray, words: Tokenizer
) -> tuple[pa.StringArray, npt.NDArray[np.int32], Ints, Ints, Ints]:
    """Split each distinct stretch: the distinct tokens; tokens as ids into these; and of each
    stretch where its tokens begin among them, how many they are, and how many bytes are lost.
    """
    counts, lost = np.ones(len(stretches), np.int64), np.zeros(len(stretches), np.int64)
    if not words.apart:
        every = np.arange(len(stretches), dtype=np.int32)
        return stretches, every, every.astype(np.int64), counts, lost
    whole = pc.match_substring_regex(stretches, f"^{words.whole}$")
    others = np.flatnonzero(~whole.to_numpy(zero_copy_only=False))
    texts = stretches.filter(pc.invert(whole)).to_pylist()
    found = words.split(texts)
    counts[others] = [len(tokens) for tokens in found]
    split = pa.array([token for tokens in found for token in tokens], pa.string())
    encoded = pa.concat_arrays([stretches.filter(whole), split]).dictionary_encode()
    begins = np.empty(len(stretches), np.int64)
    order = np.append(np.flatnonzero(whole.to_numpy(zero_copy_only=False)), others)
    begins[order] = np.cumsum(counts[order]) - counts[order]
    for i, text, tokens in zip(others.tolist(), texts, found, strict=True):
        lost[i] = _lost(text, tokens)
    return encoded.dictionary, encoded.indices.to_numpy(), begins, counts, lost


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


def _lost(text: str, tokens: Iterable[str]) -> int:
    """How many bytes that are not white space stand in no token."""
    joined = "".join(tokens)
    if joined == text:
        return 0
    return max(0, len("".join(text.split()).encode()) - len(joined.encode()))
