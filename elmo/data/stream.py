"""Turns shards into windows: the training stream, with a position that can be saved and restored.

Rows are sentences end to end, each with its boundaries, cut into windows of T tokens without
padding. The forward direction reads `<S> w1 … wn` and predicts `w1 … wn </S>`; the backward one
reads the same sentences as `</S> wn … w1` and predicts `wn … w1 <S>`, so both directions of a
window have nearly the same distinct tokens. The shards of an epoch are shuffled and divided into
groups. The blocks of a group, runs of neighbouring sentences, are shuffled and laid end to end, and
each row reads an equal part of that text, cut at the end of a sentence. So all rows end together,
and no step is nearly empty. The order depends on the seed and the number of rows, never on the
workers: each worker computes the parts of all rows from the lengths of the blocks, and reads only
the blocks of its own rows.

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

PREFETCH_COUNT = 2  # items computed ahead
SHARDS_PER_GROUP = 32  # the maximum; a group's shards are open at the same time
_KEYS_PER_SHARD = np.int64(1) << 32
Item = TypeVar("Item")


class StreamPosition(TypedDict):
    """The position up to which a stream was read, to be saved. For each row, `rows` has the number
    of its group, counted over all epochs, and the offset in that group, in tokens."""

    rows: list[list[int]]


@dataclass(frozen=True)
class Window:
    """The input and the targets of one training step, for the rows of one worker.

    Axes: S direction, T time step, B row, N distinct token, K character. `index_STB` has each
    token's row in `characters_NK` (character ids of the distinct tokens) and in `bytes_N` (their
    lengths in UTF-8). `targets_STB` has the ids of the words to predict. `mask_TB` is false where a
    row has no more text, `reset_TB` true where a sentence begins. `words` are the distinct targets
    of this worker; `count` is the number of predictions of *all* workers in both directions.
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
    """Consecutive sentences laid end to end, in forward and backward reading order.

    `keys_Sn` identifies the token that each direction reads at each of n time steps, `words_Sn` has
    the ids of the words it predicts, and `starts_n` is true where a sentence begins. A key is the
    word's id or, for a word outside the vocabulary, a unique number.
    """

    keys_Sn: Int64s
    words_Sn: Int64s
    starts_n: npt.NDArray[np.bool_]


WindowAndPosition = tuple[Window, Callable[[], StreamPosition]]


class WindowStream:
    """The text of one split of a shards folder as windows: `rows` parallel streams of text, cut
    every `window` tokens. A window is the input of one training step.

    The text is read `epochs` times, in blocks of `block_sentences` neighbouring sentences, in an
    order drawn from `seed` (None: the original order, for evaluation). This worker reads the rows
    numbered `own_rows` (default: all). `encode` returns the character ids of distinct tokens.
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
        self.rows, self.window, self.block_sentences = rows, window, block_sentences
        self.epochs, self.seed = epochs, seed
        self.own_rows = np.arange(rows) if own_rows is None else np.asarray(own_rows)
        self._shard_types: OrderedDict[int, _ShardTypes] = OrderedDict()
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._encoded_words: tuple[npt.NDArray[np.int32], Int64s] | None = None
        self.groups_per_epoch = -(-len(self.entries) // SHARDS_PER_GROUP)
        if not any(entry.tokens for entry in self.entries):
            raise ElmoError(f"{shards.location}: has no {split} tokens; raise tokenize.heldout")

    @property
    def predictions_per_epoch(self) -> int:
        """Return how many tokens each direction predicts in one epoch: all tokens, and one boundary
        per non-empty sentence."""
        shards = (self.shards.open(entry) for entry in self.entries)
        sentence_count = sum(int(np.count_nonzero(np.diff(shard.offsets))) for shard in shards)
        return sum(entry.tokens for entry in self.entries) + sentence_count

    def first_position(self) -> StreamPosition:
        """Return the position before the first window."""
        return {"rows": [[0, int(bound)] for bound in self._get_group(0).bounds[:-1]]}

    def windows(self, position: StreamPosition) -> Iterator[WindowAndPosition]:
        """Yield the windows from `position` onwards, each with a function that returns the position
        after it. Resumed training continues from such a position. Computing one is costly."""
        cursor, buffer = _RowCursor(self, position), _BlockBuffer(len(self.own_rows))
        steps_T1 = np.arange(self.window)[:, None]
        while count := cursor.advance():
            group_B, offset_B, tokens_B = cursor.window_starts(self.own_rows)
            start_B = buffer.find_starts(group_B, offset_B, self.window)
            length_B = np.full(len(self.own_rows), self.window)
            is_whole_B = (tokens_B == self.window) & (start_B >= 0)
            # keys, words and starts, for rows whose window is inside their current block
            tokens_5TB = buffer.blocks_5n.take(np.where(is_whole_B, start_B + steps_T1, 0), axis=1)
            for column in np.flatnonzero(~is_whole_B).tolist():
                row_tokens, row_5T = 0, tokens_5TB[:, :, column]
                row_5T[:] = [[self.vocabulary.bos], [self.vocabulary.eos], [0], [0], [0]]
                for block_id, offset, block_offset, token_count in cursor.block_parts(
                    int(self.own_rows[column])
                ):
                    if block_id != buffer.block_id_B[column]:
                        buffer.put_block(column, block_id, offset, self._read_block(*block_id))
                    start = int(buffer.start_B[column]) + block_offset
                    part_5n = buffer.blocks_5n[:, start : start + token_count]
                    row_5T[:, row_tokens : row_tokens + token_count] = part_5n
                    row_tokens += token_count
                length_B[column] = row_tokens
            window = self._make_window(tokens_5TB, steps_T1 < length_B, 2 * count)
            yield window, cursor.position_after()

    def _make_window(
        self, tokens_5TB: Int64s, mask_TB: npt.NDArray[np.bool_], count: int
    ) -> Window:
        keys_STB, words_STB = tokens_5TB[:2], tokens_5TB[2:4]
        vocabulary_size, is_word_STB = len(self.vocabulary), keys_STB < _KEYS_PER_SHARD
        oov_keys, oov_index = np.unique(keys_STB[~is_word_STB], return_inverse=True)
        distinct_words = distinct_numbers(keys_STB[is_word_STB], vocabulary_size)
        index_STB = np.empty(keys_STB.shape, np.int64)
        index_STB[is_word_STB] = index_table(distinct_words, vocabulary_size)[keys_STB[is_word_STB]]
        index_STB[~is_word_STB] = len(distinct_words) + oov_index
        return Window(
            index_STB,
            words_STB,
            mask_TB,
            tokens_5TB[4].astype(bool),
            *self._encode_keys(np.concatenate([distinct_words, oov_keys])),
            distinct_numbers(words_STB[:, mask_TB], vocabulary_size),
            count,
        )

    def _encode_keys(self, keys: Int64s) -> tuple[npt.NDArray[np.int32], Int64s]:
        """Return the characters and byte lengths of distinct tokens, of words from a table."""
        if self._encoded_words is None:
            words = self.vocabulary.words
            self._encoded_words = self.encode(words), byte_lengths(words)
        word_characters_VK, word_lengths = self._encoded_words
        is_word = keys < _KEYS_PER_SHARD
        characters_NK = np.empty((len(keys), word_characters_VK.shape[1]), np.int32)
        characters_NK[is_word] = word_characters_VK[keys[is_word]]
        lengths = np.empty(len(keys), np.int64)
        lengths[is_word] = word_lengths[keys[is_word]]
        oov_keys = keys[~is_word]
        tokens = [
            self._get_types(number - 1).shard.dictionary[index].as_py()
            for number, index in (divmod(int(key), int(_KEYS_PER_SHARD)) for key in oov_keys)
        ]
        if tokens:
            characters_NK[~is_word], lengths[~is_word] = self.encode(tokens), byte_lengths(tokens)
        return characters_NK, lengths

    def _read_block(self, group: int, block_number: int) -> TokenBlock:
        """Read the block `block_number` of a group."""
        shard_number, block = self._get_group(group).blocks_M2[block_number].tolist()
        types = self._get_types(shard_number)
        offsets = self._block_offsets(types.shard, block)
        ids = types.shard.ids[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets)
        lengths = lengths[lengths > 0]
        return lay_out_both_directions(types.keys[ids], types.words[ids], lengths, self.vocabulary)

    def _block_offsets(self, shard: Shard, block: int) -> Int64s:
        """Return the index of the first token of each sentence of a block, and of the end."""
        start = block * self.block_sentences
        return shard.offsets[start : start + self.block_sentences + 1].astype(np.int64)

    def _get_group(self, index: int) -> "_Group":
        """Return the group `index`, counted over all epochs."""
        if index not in self._groups:
            self._groups[index] = self._draw_group(*divmod(index, self.groups_per_epoch))
            if len(self._groups) > 2:
                self._groups.popitem(last=False)
        self._groups.move_to_end(index)
        return self._groups[index]

    def _draw_group(self, epoch: int, number: int) -> "_Group":
        shard_order = np.arange(len(self.entries))
        if self.seed is not None:
            np.random.default_rng([self.seed, epoch]).shuffle(shard_order)
        shard_numbers = np.array_split(shard_order, self.groups_per_epoch)[number].tolist()
        shard_by_number = {k: self.shards.open(self.entries[k]) for k in shard_numbers}
        lengths_M, blocks = [], []
        for shard_number, shard in shard_by_number.items():
            sentence_lengths = np.diff(shard.offsets.astype(np.int64))
            starts = np.arange(0, len(sentence_lengths), self.block_sentences)
            lengths_M.append(np.add.reduceat(sentence_lengths + (sentence_lengths > 0), starts))
            blocks.append(np.stack([np.full(len(starts), shard_number), np.arange(len(starts))], 1))
        blocks_M2, length_M = np.concatenate(blocks), np.concatenate(lengths_M)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, epoch, number]).permutation(len(blocks_M2))
            blocks_M2, length_M = blocks_M2[order], length_M[order]
        ends_M = np.cumsum(length_M)
        bounds = np.arange(self.rows + 1) * int(ends_M[-1]) // self.rows
        for row in range(1, self.rows if bounds[-1] else 1):
            index = int(np.searchsorted(ends_M, bounds[row], side="right"))
            shard_number, block = blocks_M2[index].tolist()
            sentence_lengths = np.diff(self._block_offsets(shard_by_number[shard_number], block))
            ends = np.cumsum(sentence_lengths + (sentence_lengths > 0), dtype=np.int64)
            sentence_ends = int(ends_M[index] - length_M[index]) + np.concatenate([[0], ends])
            bounds[row] = sentence_ends[np.abs(sentence_ends - bounds[row]).argmin()]
        return _Group(blocks_M2, ends_M, bounds)

    def _get_types(self, shard_number: int) -> "_ShardTypes":
        if shard_number not in self._shard_types:
            self._shard_types[shard_number] = _ShardTypes.open(
                self.shards, self.entries, shard_number, self.vocabulary
            )
            if len(self._shard_types) > 2 * SHARDS_PER_GROUP:
                self._shard_types.popitem(last=False)
        self._shard_types.move_to_end(shard_number)
        return self._shard_types[shard_number]


class _Group(NamedTuple):
    """The shuffled blocks of some shards, laid end to end, and the part that each row reads.

    For each block, `blocks_M2` has the shard's number and the block's number in it, and `ends_M`
    its end, in tokens of the group. `bounds` has the start of each row's part, and the last end.
    """

    blocks_M2: Int64s
    ends_M: Int64s
    bounds: Int64s


class _BlockBuffer:
    """The current block of each row, in one array, so that one operation cuts all rows' windows.

    `blocks_5n` has the keys in both directions, the words in both directions, and marks where
    sentences begin. Row k reads the block `block_id_B[k]` (its group and number), which begins at
    column `start_B[k]`.
    """

    def __init__(self, rows: int) -> None:
        self.blocks_5n, self._end = np.zeros((5, 1), np.int64), 0
        self.block_id_B, self._group_B = [(-1, -1)] * rows, np.full(rows, -1)
        self.start_B, self._offset_B, self._tokens_B, self._width_B = np.zeros((4, rows), np.int64)

    def find_starts(self, group_B: Int64s, offset_B: Int64s, token_count: int) -> Int64s:
        """Return for each row the column where `token_count` tokens begin, given their offset in a
        group; −1 if they are not all in the row's block."""
        block_offset_B = offset_B - self._offset_B
        is_inside_B = (block_offset_B >= 0) & (block_offset_B + token_count <= self._tokens_B)
        return np.where(is_inside_B & (group_B == self._group_B), self.start_B + block_offset_B, -1)

    def put_block(
        self, row: int, block_id: tuple[int, int], offset: int, block: TokenBlock
    ) -> None:
        """Replace a row's block by its next one, which begins at `offset` in its group."""
        token_count = len(block.starts_n)
        if token_count > self._width_B[row]:
            self._width_B[row] = 0
            self._allocate(row, token_count * 5 // 4)
        self.block_id_B[row], self._group_B[row], self._offset_B[row] = (
            block_id,
            block_id[0],
            offset,
        )
        self._tokens_B[row], start = token_count, int(self.start_B[row])
        columns_5n = self.blocks_5n[:, start : start + token_count]
        columns_5n[:2], columns_5n[2:4], columns_5n[4] = block

    def _allocate(self, row: int, width: int) -> None:
        """Reserve columns for a row at the end of the array, which grows if necessary."""
        if self._end + width > self.blocks_5n.shape[1]:
            old_5n, self._end = self.blocks_5n, 0
            self.blocks_5n = np.empty((5, (int(self._width_B.sum()) + width) * 3 // 2), np.int64)
            for k, old_width in enumerate(self._width_B.tolist()):
                start = self.start_B[k]
                row_stop = self._end + old_width
                self.blocks_5n[:, self._end : row_stop] = old_5n[:, start : start + old_width]
                self.start_B[k] = self._end
                self._end = row_stop
        self.start_B[row], self._width_B[row] = self._end, width
        self._end += width


class _RowCursor:
    """For each row: its current group, its offset in the group and the end of its part. They are
    computed from block lengths, without reading tokens."""

    def __init__(self, stream: WindowStream, position: StreamPosition) -> None:
        self.stream = stream
        self.group_count = stream.epochs * stream.groups_per_epoch
        self.group_B, self.offset_B = np.array(position["rows"], np.int64).reshape(-1, 2).T.copy()
        ends = [self._find_part(row, group)[1] for row, group in enumerate(self.group_B.tolist())]
        self.end_B = np.array(ends, np.int64)
        self._parts: dict[int, list[tuple[int, int, int]]] = {}

    def advance(self) -> int:
        """Advance all rows by one window; return how many tokens they read, 0 at the end."""
        window = self.stream.window
        self._starts = self.group_B, self.offset_B, np.minimum(self.end_B - self.offset_B, window)
        self._parts = {}
        self.group_B, self.offset_B = self.group_B.copy(), self.offset_B + self._starts[2]
        tokens_B = self._starts[2].copy()
        for row in np.flatnonzero((tokens_B < window) & (self.group_B < self.group_count)).tolist():
            parts = [self._find_window_start(row)]
            while tokens_B[row] < window and self.group_B[row] < self.group_count:
                self.group_B[row] += 1
                start, self.end_B[row] = self._find_part(row, int(self.group_B[row]))
                token_count = min(window - int(tokens_B[row]), int(self.end_B[row]) - start)
                parts.append((int(self.group_B[row]), start, token_count))
                self.offset_B[row] = start + token_count
                tokens_B[row] += token_count
            self._parts[row] = parts
        return int(tokens_B.sum())

    def window_starts(self, rows: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return, for each of `rows`, where its window begins: the group, the offset in it, and how
        many of the window's tokens are in that group."""
        group, offset, token_count = self._starts
        return group[rows], offset[rows], token_count[rows]

    def _find_window_start(self, row: int) -> tuple[int, int, int]:
        """Return where a row's window begins, as `window_starts` does."""
        group, offset, token_count = (int(array_B[row]) for array_B in self._starts)
        return group, offset, token_count

    def _find_part(self, row: int, group: int) -> tuple[int, int]:
        """Return the start and end of a row's part of a group; empty beyond the last group."""
        if group == self.group_count:
            return 0, 0
        start, end = self.stream._get_group(group).bounds[row : row + 2].tolist()
        return start, end

    def block_parts(self, row: int) -> Iterator[tuple[tuple[int, int], int, int, int]]:
        """Yield the parts of blocks that a row reads in this window. Each has its block's group,
        number and offset in the group, the part's offset in the block, and its number of tokens."""
        for group, start, tokens_left in self._parts.get(row) or [self._find_window_start(row)]:
            if tokens_left:
                ends_M = self.stream._get_group(group).ends_M
            while tokens_left:
                block_number = int(np.searchsorted(ends_M, start, side="right"))
                token_count = min(tokens_left, int(ends_M[block_number]) - start)
                block_start = int(ends_M[block_number - 1]) if block_number else 0
                yield (group, block_number), block_start, start - block_start, token_count
                start, tokens_left = start + token_count, tokens_left - token_count

    def position_after(self) -> Callable[[], StreamPosition]:
        """Return a function that computes the position after this window; it can be pickled.

        Computing the position costs more than the window itself.
        """
        return partial(_make_position, self.group_B, self.offset_B)


def _make_position(group: Int64s, offset: Int64s) -> StreamPosition:
    return {"rows": np.stack([group, offset], 1).tolist()}


@dataclass(frozen=True)
class _ShardTypes:
    """A shard, with the word id of each of its types and a key that identifies it in all shards."""

    shard: Shard
    words: Int64s
    keys: Int64s

    @classmethod
    def open(
        cls, shards: Shards, entries: list[ShardEntry], shard_number: int, vocabulary: Vocabulary
    ) -> "_ShardTypes":
        shard = shards.open(entries[shard_number])
        words = vocabulary.ids(shard.types).astype(np.int64)
        is_unknown = words == vocabulary.unk
        oov_keys = (shard_number + 1) * _KEYS_PER_SHARD + np.arange(len(words))
        return cls(shard, words, np.where(is_unknown, oov_keys, words))


def byte_lengths(tokens: Sequence[str]) -> Int64s:
    """Return the length of each token in UTF-8 bytes, as an int64 array."""
    return np.array([len(token.encode()) for token in tokens], np.int64)


def lay_out_both_directions(
    keys: Int64s, words: Int64s, lengths: Int64s, vocabulary: Vocabulary
) -> TokenBlock:
    """Lay sentences end to end in forward and backward reading order, with their boundaries.

    `keys` and `words` are those of all tokens in text order, as in `TokenBlock`; `lengths` are the
    token counts of the sentences, none of them 0.
    """
    ends = np.cumsum(lengths + 2)
    is_token = np.ones(int((lengths + 2).sum()), bool)
    is_token[ends - 1] = is_token[ends - lengths - 2] = False
    full_keys = np.full(len(is_token), vocabulary.bos, np.int64)
    full_keys[ends - 1] = vocabulary.eos
    full_words = full_keys.copy()
    full_keys[is_token], full_words[is_token] = keys, words
    positions = np.arange(int((lengths + 1).sum()))
    starts = np.cumsum(lengths + 1) - lengths - 1
    sentence_index = np.repeat(np.arange(len(lengths)), lengths + 1)
    time_step = positions - starts[sentence_index]
    forward_index = (ends - lengths - 2)[sentence_index] + time_step
    backward_index = (ends - 1)[sentence_index] - time_step
    return TokenBlock(
        np.stack([full_keys[forward_index], full_keys[backward_index]]),
        np.stack([full_words[forward_index + 1], full_words[backward_index - 1]]),
        time_step == 0,
    )


def prefetch(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yield the items of an iterator in order, while a second thread computes the next two. An
    exception in the iterator is raised here; an item that is None ends the iteration.

    If the caller stops early, these two are still computed: other workers may wait for them.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="stream")
    try:
        futures = deque(thread.submit(next, items, None) for _ in range(PREFETCH_COUNT))
        while (item := futures.popleft().result()) is not None:
            futures.append(thread.submit(next, items, None))
            yield item
    finally:
        thread.shutdown()
