"""Shards → windows: the training stream, with a position that can be saved and restored.

Rows hold sentences end to end, each with its boundaries, cut in windows of T tokens without
padding. The forward direction reads `<S> w1 … wn` and predicts `w1 … wn </S>`; the backward one,
beside it, reads `</S> wn … w1` and predicts `wn … w1 <S>`, so a window has nearly the same distinct
tokens both ways. The shards of an epoch are shuffled and dealt into groups. The blocks of a group,
runs of neighbouring sentences, are shuffled and laid end to end, and each row reads an equal part
of that text, cut at the end of a sentence: so all rows come to the end together, and no step is
nearly empty. The order depends on the seed and the number of rows, never on the workers: each knows
the parts of all rows from the lengths of the blocks, and reads the blocks of its own rows.

Shapes: S directions (0 forward, 1 backward), T time steps, B rows, N distinct tokens, K characters,
V words, n time steps of a block, M blocks of a group.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from elmo.data.arrays import Int64s, distinct_numbers, index_table
from elmo.data.manifest import ShardEntry
from elmo.data.shards import Shard, Shards
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError

PREFETCHED = 2  # items that wait to be consumed
SHARDS_MIXED = 32  # shards of a group, at most: what must be open at a time
_OOV = np.int64(1) << 32
Item = TypeVar("Item")


class StreamPosition(TypedDict):
    """The place in a stream up to which it was read, to be saved and continued: `rows` has for each
    row the group that it reads, counted over all epochs, and its place there, in tokens from the
    group's first."""

    rows: list[list[int]]


@dataclass(frozen=True)
class Window:
    """The input and the targets of one training step, for the rows of one worker.

    Axes: S direction, T time step, B row, N distinct token, K character. `index_STB` gives each
    token's row in `characters_NK`, the character ids of the distinct tokens, whose lengths in UTF-8
    are `bytes_N`. `targets_STB` are the ids of the words to be predicted. `mask_TB` is false where
    a row has no more text, `reset_TB` true where a sentence begins. `words` are the distinct
    targets of this worker; `count` is the number of predictions of *all* workers, both directions
    counted.
    """

    index_STB: Int64s
    targets_STB: Int64s
    mask_TB: npt.NDArray[np.bool_]
    reset_TB: npt.NDArray[np.bool_]
    characters_NK: npt.NDArray[np.int32]
    bytes_N: Int64s
    words: Int64s
    count: int


class TokenBlock(NamedTuple):
    """Consecutive sentences laid end to end, in forward and in backward reading order.

    `keys_Sn` identify the token that each direction reads at each of n time steps, `words_Sn` are
    the ids of the words it predicts, and `starts_n` is true where a sentence begins. A key is the
    word's id, or for a word outside the vocabulary a number of its own.
    """

    keys_Sn: Int64s
    words_Sn: Int64s
    starts_n: npt.NDArray[np.bool_]


WindowAndPosition = tuple[Window, Callable[[], StreamPosition]]


class WindowStream:
    """The text of one split of a shards folder as windows, the input of one training step each:
    `rows` parallel streams of text, cut every `window` tokens.

    The text is read `epochs` times, in blocks of `block_sentences` neighbouring sentences, in an
    order drawn from `seed`; with `seed=None`, in the original order, as for evaluation. This worker
    reads the rows whose numbers are in `own_rows` (default: all). `encode` turns distinct tokens
    into character ids (tokens, characters).
    """

    def __init__(
        self,
        shards: Shards,
        vocabulary: Vocabulary,
        encode: Callable[[list[str]], npt.NDArray[np.int32]],
        *,
        split: str,
        rows: int,
        window: int,
        block_sentences: int,
        epochs: int,
        seed: int | None,
        own_rows: Sequence[int] | None = None,
    ) -> None:
        if rows < 1 or window < 1 or block_sentences < 1:
            raise ElmoError("rows, window and block_sentences must be 1 or more")
        self.shards, self.entries = shards, shards.entries(split)
        self.vocabulary, self.encode = vocabulary, encode
        self.rows, self.window, self.block = rows, window, block_sentences
        self.epochs, self.seed = epochs, seed
        self.own_rows = np.arange(rows) if own_rows is None else np.asarray(own_rows)
        self._tables: OrderedDict[int, _Table] = OrderedDict()
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._words: tuple[npt.NDArray[np.signedinteger], Int64s] | None = None
        self.groups_per_epoch = -(-len(self.entries) // SHARDS_MIXED)
        if not any(entry.tokens for entry in self.entries):
            raise ElmoError(f"{shards.location}: has no {split} tokens; raise tokenize.heldout")

    @property
    def predictions_per_epoch(self) -> int:
        """Return how many tokens each direction predicts in one epoch: all tokens, and one boundary
        per sentence that has tokens."""
        shards = (self.shards.open(entry) for entry in self.entries)
        sentence_count = sum(int(np.count_nonzero(np.diff(shard.offsets))) for shard in shards)
        return sum(entry.tokens for entry in self.entries) + sentence_count

    def first_position(self) -> StreamPosition:
        """Return the position before the first window, from which `windows` reads everything."""
        return {"rows": [[0, int(place)] for place in self._group(0).bounds[:-1]]}

    def windows(self, position: StreamPosition) -> Iterator[WindowAndPosition]:
        """Yield the windows from `position` onwards, each with a function that returns the position
        after it, from which a resumed training continues. It is a function because positions are
        costly and seldom needed."""
        rows, blocks = _Rows(self, position), _RowBlocks(len(self.own_rows))
        steps_T1 = np.arange(self.window)[:, None]
        while count := rows.advance():
            group_B, place_B, tokens_B = rows.window_begins(self.own_rows)
            begin_B = blocks.begin_of(group_B, place_B, self.window)
            length_B = np.full(len(self.own_rows), self.window)
            is_whole_B = (tokens_B == self.window) & (begin_B >= 0)
            # keys, words and starts, of rows whose window lies in the block that they had
            read_5TB = blocks.laid_5n.take(np.where(is_whole_B, begin_B + steps_T1, 0), axis=1)
            for column in np.flatnonzero(~is_whole_B).tolist():
                row_tokens, row_5T = 0, read_5TB[:, :, column]
                row_5T[:] = [[self.vocabulary.bos], [self.vocabulary.eos], [0], [0], [0]]
                for name, place, offset, tokens in rows.pieces(int(self.own_rows[column])):
                    if name != blocks.name_B[column]:
                        blocks.lay(column, name, place, self._read(*name))
                    begin = int(blocks.begin_B[column]) + offset
                    piece_5n = blocks.laid_5n[:, begin : begin + tokens]
                    row_5T[:, row_tokens : row_tokens + tokens] = piece_5n
                    row_tokens += tokens
                length_B[column] = row_tokens
            window = self._window(read_5TB, steps_T1 < length_B, 2 * count)
            yield window, rows.position_after()

    def _window(self, read_5TB: Int64s, mask_TB: npt.NDArray[np.bool_], count: int) -> Window:
        keys_STB, words_STB = read_5TB[:2], read_5TB[2:4]
        words, is_word_STB = len(self.vocabulary), keys_STB < _OOV
        oov_keys, oov_index = np.unique(keys_STB[~is_word_STB], return_inverse=True)
        distinct = distinct_numbers(keys_STB[is_word_STB], words)
        index_STB = np.empty(keys_STB.shape, np.int64)
        index_STB[is_word_STB] = index_table(distinct, words)[keys_STB[is_word_STB]]
        index_STB[~is_word_STB] = len(distinct) + oov_index
        return Window(
            index_STB,
            words_STB,
            mask_TB,
            read_5TB[4].astype(bool),
            *self._characters(np.concatenate([distinct, oov_keys])),
            distinct_numbers(words_STB[:, mask_TB], words),
            count,
        )

    def _characters(self, keys: Int64s) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Return the characters and byte lengths of distinct tokens: words from a table, others
        encoded."""
        if self._words is None:
            words = self.vocabulary.words
            self._words = _narrow(self.encode(words)), byte_lengths(words)
        of_words_VK, word_lengths = self._words
        is_word = keys < _OOV
        characters_NK = np.empty((len(keys), of_words_VK.shape[1]), np.int32)
        characters_NK[is_word] = of_words_VK[keys[is_word]]
        lengths = np.empty(len(keys), np.int64)
        lengths[is_word] = word_lengths[keys[is_word]]
        oov_keys = keys[~is_word]
        tokens = [
            self._table(int(key // _OOV) - 1).shard.dictionary[int(key % _OOV)].as_py()
            for key in oov_keys
        ]
        if tokens:
            characters_NK[~is_word], lengths[~is_word] = self.encode(tokens), byte_lengths(tokens)
        return characters_NK, lengths

    def _read(self, group: int, number: int) -> TokenBlock:
        """Read the block `number` of a group."""
        shard_number, block = self._group(group).blocks_M2[number].tolist()
        table = self._table(shard_number)
        offsets = self._offsets(table.shard, block)
        ids = table.shard.ids[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets)
        lengths = lengths[lengths > 0]
        return lay_out_both_ways(table.keys[ids], table.words[ids], lengths, self.vocabulary)

    def _offsets(self, shard: Shard, block: int) -> Int64s:
        """Return where each sentence of a block begins among the shard's tokens, and the end."""
        start = block * self.block
        return shard.offsets[start : start + self.block + 1].astype(np.int64)

    def _group(self, number: int) -> "_Group":
        """Return the group `number`, counted over all epochs, of shuffled blocks."""
        if number not in self._groups:
            self._groups[number] = self._draw_group(*divmod(number, self.groups_per_epoch))
            if len(self._groups) > 2:
                self._groups.popitem(last=False)
        self._groups.move_to_end(number)
        return self._groups[number]

    def _draw_group(self, epoch: int, number: int) -> "_Group":
        shards = np.arange(len(self.entries))
        if self.seed is not None:
            np.random.default_rng([self.seed, epoch]).shuffle(shards)
        shard_numbers = np.array_split(shards, self.groups_per_epoch)[number].tolist()
        shard_by_number = {shard: self.shards.open(self.entries[shard]) for shard in shard_numbers}
        lengths_M, blocks = [], []
        for shard, content in shard_by_number.items():
            sentences = np.diff(content.offsets.astype(np.int64))
            starts = np.arange(0, len(sentences), self.block)
            lengths_M.append(np.add.reduceat(sentences + (sentences > 0), starts))
            blocks.append(np.stack([np.full(len(starts), shard), np.arange(len(starts))], 1))
        blocks_M2, length_M = np.concatenate(blocks), np.concatenate(lengths_M)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch, number]).permutation(len(blocks_M2))
            blocks_M2, length_M = blocks_M2[order], length_M[order]
        ends_M = np.cumsum(length_M)
        bounds = np.arange(self.rows + 1) * int(ends_M[-1]) // self.rows
        for row in range(1, self.rows if bounds[-1] else 1):
            index = int(np.searchsorted(ends_M, bounds[row], side="right"))
            shard, block = blocks_M2[index].tolist()
            sentences = np.diff(self._offsets(shard_by_number[shard], block))
            ends = np.cumsum(sentences + (sentences > 0), dtype=np.int64)
            places = int(ends_M[index] - length_M[index]) + np.concatenate([[0], ends])
            bounds[row] = places[np.abs(places - bounds[row]).argmin()]
        return _Group(blocks_M2, ends_M, bounds)

    def _table(self, number: int) -> "_Table":
        if number not in self._tables:
            self._tables[number] = _Table.open(self.shards, self.entries, number, self.vocabulary)
            if len(self._tables) > 2 * SHARDS_MIXED:
                self._tables.popitem(last=False)
        self._tables.move_to_end(number)
        return self._tables[number]


class _Group(NamedTuple):
    """The shuffled blocks of some shards, laid end to end, and the part that each row reads.

    `blocks_M2` are the numbers of each block's shard and of the block there, `ends_M` the tokens
    from the group's first to the end of each block, `bounds` where the row's parts begin, and the
    end of the last.
    """

    blocks_M2: Int64s
    ends_M: Int64s
    bounds: Int64s


class _RowBlocks:
    """The block that each row reads, all in one array, so that one operation takes the windows of
    all rows.

    `laid_5n` has their keys in both directions, their words in both directions, and where sentences
    begin. Row k reads the block `name_B[k]` (its group and number), which begins at `begin_B[k]`.
    """

    def __init__(self, rows: int) -> None:
        self.laid_5n, self._end = np.zeros((5, 1), np.int64), 0
        self.name_B, self._group_B = [(-1, -1)] * rows, np.full(rows, -1)
        self.begin_B, self._place_B, self._tokens_B, self._room_B = np.zeros((4, rows), np.int64)

    def begin_of(self, group_B: Int64s, place_B: Int64s, tokens: int) -> Int64s:
        """Return where the next tokens of each row are laid, from a place in a group on; −1 where
        they are not all in the row's block."""
        offset_B = place_B - self._place_B
        is_inside_B = (offset_B >= 0) & (offset_B + tokens <= self._tokens_B)
        return np.where(is_inside_B & (group_B == self._group_B), self.begin_B + offset_B, -1)

    def lay(self, row: int, name: tuple[int, int], place: int, block: TokenBlock) -> None:
        """Lay a row's next block, which begins at a place of its group, over the one before if it
        fits there."""
        tokens = len(block.starts_n)
        if tokens > self._room_B[row]:
            self._room_B[row] = 0
            self._make_room(row, tokens * 5 // 4)
        self.name_B[row], self._group_B[row], self._place_B[row] = name, name[0], place
        self._tokens_B[row], begin = tokens, int(self.begin_B[row])
        laid_5n = self.laid_5n[:, begin : begin + tokens]
        laid_5n[:2], laid_5n[2:4], laid_5n[4] = block

    def _make_room(self, row: int, tokens: int) -> None:
        """Give a row room at the end of the array, which is made longer if it must be."""
        if self._end + tokens > self.laid_5n.shape[1]:
            old_5n, self._end = self.laid_5n, 0
            self.laid_5n = np.empty((5, (int(self._room_B.sum()) + tokens) * 3 // 2), np.int64)
            for k, room in enumerate(self._room_B.tolist()):
                begin = self.begin_B[k]
                self.laid_5n[:, self._end : self._end + room] = old_5n[:, begin : begin + room]
                self.begin_B[k] = self._end
                self._end += room
        self.begin_B[row], self._room_B[row] = self._end, tokens
        self._end += tokens


class _Rows:
    """The group that each row reads, its place there and the end of its part, computed from the
    block lengths without reading tokens."""

    def __init__(self, stream: WindowStream, position: StreamPosition) -> None:
        self.stream = stream
        self.groups = stream.epochs * stream.groups_per_epoch
        self.group, self.place = np.array(position["rows"], np.int64).reshape(-1, 2).T.copy()
        ends = [self._part(row, group)[1] for row, group in enumerate(self.group.tolist())]
        self.end = np.array(ends, np.int64)
        self._parts: dict[int, list[tuple[int, int, int]]] = {}

    def advance(self) -> int:
        """Advance all rows by one window; return the number of tokens they read, 0 at the end."""
        window = self.stream.window
        self._window_begin = self.group, self.place, np.minimum(self.end - self.place, window)
        self._parts = {}
        self.group, self.place = self.group.copy(), self.place + self._window_begin[2]
        tokens_B = self._window_begin[2].copy()
        for row in np.flatnonzero((tokens_B < window) & (self.group < self.groups)).tolist():
            parts = [self._window_begin_of(row)]
            while tokens_B[row] < window and self.group[row] < self.groups:
                self.group[row] += 1
                start, self.end[row] = self._part(row, int(self.group[row]))
                tokens = min(window - int(tokens_B[row]), int(self.end[row]) - start)
                parts.append((int(self.group[row]), start, tokens))
                self.place[row] = start + tokens
                tokens_B[row] += tokens
            self._parts[row] = parts
        return int(tokens_B.sum())

    def window_begins(self, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return the group and the place where the window of each of some rows begins, and how many
        tokens follow in the row's part of that group."""
        group, place, tokens = self._window_begin
        return group[rows], place[rows], tokens[rows]

    def _window_begin_of(self, row: int) -> tuple[int, int, int]:
        """Return where a row's window begins: the group, the place there, and how many tokens
        follow in the row's part of it."""
        group, place, tokens = (int(array_B[row]) for array_B in self._window_begin)
        return group, place, tokens

    def _part(self, row: int, group: int) -> tuple[int, int]:
        """Return where a row's part of a group begins and ends; beyond the last group it is
        empty."""
        if group == self.groups:
            return 0, 0
        begin, end = self.stream._group(group).bounds[row : row + 2].tolist()
        return begin, end

    def pieces(self, row: int) -> Iterator[tuple[tuple[int, int], int, int, int]]:
        """Yield the parts of blocks that a row reads in this window: the group and number of the
        block, its place in the group, an offset in it, and how many tokens."""
        for group, start, left in self._parts.get(row) or [self._window_begin_of(row)]:
            if left:
                ends_M = self.stream._group(group).ends_M
            while left:
                number = int(np.searchsorted(ends_M, start, side="right"))
                tokens = min(left, int(ends_M[number]) - start)
                begin = int(ends_M[number - 1]) if number else 0
                yield (group, number), begin, start - begin, tokens
                start, left = start + tokens, left - tokens

    def position_after(self) -> Callable[[], StreamPosition]:
        """Return a function that computes the position after this window; it can be pickled.

        Computing the position costs more than the window itself, and it is seldom needed.
        """
        return partial(_position, self.group, self.place)


def _position(group: Int64s, place: Int64s) -> StreamPosition:
    return {"rows": np.stack([group, place], 1).tolist()}


@dataclass(frozen=True)
class _Table:
    """A shard with the word id of each of its types, and a key that is unique to each distinct
    token."""

    shard: Shard
    words: Int64s
    keys: Int64s

    @classmethod
    def open(
        cls, shards: Shards, entries: list[ShardEntry], number: int, vocabulary: Vocabulary
    ) -> "_Table":
        shard = shards.open(entries[number])
        words = vocabulary.ids(shard.types).astype(np.int64)
        is_unknown = words == vocabulary.unk
        oov_keys = (number + 1) * _OOV + np.arange(len(words))
        return cls(shard, words, np.where(is_unknown, oov_keys, words))


def byte_lengths(tokens: Sequence[str]) -> Int64s:
    """Return the length of each token in UTF-8 bytes, as an int64 array."""
    return np.array([len(token.encode()) for token in tokens], np.int64)


def _narrow(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.signedinteger]:
    """Return the ids as int16 if they all fit, else unchanged."""
    return ids.astype(np.int16) if ids.max(initial=0) <= np.iinfo(np.int16).max else ids


def lay_out_both_ways(
    keys: Int64s, words: Int64s, lengths: Int64s, vocabulary: Vocabulary
) -> TokenBlock:
    """Lay sentences end to end in forward and in backward reading order, with their boundary
    tokens.

    `keys` (numbers that identify tokens, as in `TokenBlock`) and `words` (word ids) are those of
    all their tokens, in text order; `lengths` are the token counts of the sentences, none of them
    0.
    """
    ends = np.cumsum(lengths + 2)
    is_token = np.ones(int((lengths + 2).sum()), bool)
    is_token[ends - 1] = is_token[ends - lengths - 2] = False
    full_keys = np.full(len(is_token), vocabulary.bos, np.int64)
    full_keys[ends - 1] = vocabulary.eos
    full_words = full_keys.copy()
    full_keys[is_token], full_words[is_token] = keys, words
    times = np.arange(int((lengths + 1).sum()))
    starts = np.cumsum(lengths + 1) - lengths - 1
    sentence = np.repeat(np.arange(len(lengths)), lengths + 1)
    time = times - starts[sentence]
    forward = (ends - lengths - 2)[sentence] + time
    backward = (ends - 1)[sentence] - time
    return TokenBlock(
        np.stack([full_keys[forward], full_keys[backward]]),
        np.stack([full_words[forward + 1], full_words[backward - 1]]),
        time == 0,
    )


def prefetch(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield the items of an iterator in order, while a second thread computes the next two. An
    exception in the iterator is raised here, and an item that is None ends it.

    If the caller stops early, these two are computed nonetheless: other workers may wait for them.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
    try:
        futures = deque(thread.submit(next, items, None) for _ in range(PREFETCHED))
        while (item := futures.popleft().result()) is not None:
            futures.append(thread.submit(next, items, None))
            yield item
    finally:
        thread.shutdown()
