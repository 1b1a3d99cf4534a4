"""Shards → windows: the training stream, with a position that can be saved and restored.

Rows hold sentences end to end, each with its boundaries, cut in windows of T tokens without
padding. The forward direction reads `<S> w1 … wn` and predicts `w1 … wn </S>`; the backward one,
beside it, reads `</S> wn … w1` and predicts `wn … w1 <S>`, so a window has nearly the same distinct
tokens both ways. An epoch is every block (a run of sentences of one shard) once, in an order drawn
from the seed; a row that runs out takes the next block of that order. So the order depends on the
seed and the number of rows, never on the workers, which own rows and read the same order.

Shapes: S directions (0 forward, 1 backward), T steps, B rows, N distinct tokens, K characters.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from elmo.errors import ElmoError
from elmo.shards import Info, Shard, Shards
from elmo.vocabulary import Vocabulary

Ints = npt.NDArray[np.int64]
Position = dict[str, Any]
SHARDS_MIXED = 32  # shards whose blocks are shuffled together: what must be open at a time
_OOV = np.int64(1) << 32


@dataclass(frozen=True)
class Window:
    """One step's tokens for the rows of one worker.

    `index_STB` points into `types_NK`, the characters of the distinct tokens, and `bytes_N`, their
    lengths in UTF-8; `targets_STB` are word ids; where `mask_TB` is false a row has run dry;
    `reset_TB` marks where sentences begin. `words` are the distinct targets of *all* rows, and
    `count` their predictions: 2 a token.
    """

    index_STB: Ints
    targets_STB: Ints
    mask_TB: npt.NDArray[np.bool_]
    reset_TB: npt.NDArray[np.bool_]
    types_NK: npt.NDArray[np.int32]
    bytes_N: Ints
    words: Ints
    count: int


class Block(NamedTuple):
    """A run of sentences in both reading orders: keys and word ids (S, n), starts (n)."""

    keys_Sn: Ints
    words_Sn: Ints
    starts_n: npt.NDArray[np.bool_]


class Stream:
    """Windows over one split of a folder of shards, for `epochs` epochs, then it ends.

    `mine` are the rows this worker gets, by default all. `encode` turns distinct tokens into
    characters (N, K). With `seed` None the order is that of the corpus, for evaluation.
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
        mine: Sequence[int] | None = None,
    ) -> None:
        if rows < 1 or window < 1 or block_sentences < 1:
            raise ElmoError("rows, window and block_sentences must be 1 or more")
        self.shards, self.infos = shards, shards.infos(split)
        self.vocabulary, self.encode = vocabulary, encode
        self.rows, self.window, self.block = rows, window, block_sentences
        self.epochs, self.seed = epochs, seed
        self.mine = np.arange(rows) if mine is None else np.asarray(mine)
        self._tables: OrderedDict[int, _Table] = OrderedDict()
        self._orders: dict[int, npt.NDArray[np.int32]] = {}
        self._words: tuple[npt.NDArray[np.int16], Ints] | None = None
        blocks = [-(-info["sentences"] // block_sentences) for info in self.infos]
        self._blocks = np.array(blocks, np.int64)
        if not any(info["tokens"] for info in self.infos):
            raise ElmoError(f"{shards.folder}: has no {split} tokens; raise tokenize.heldout")

    @property
    def tokens(self) -> int:
        """Predictions in each direction in one epoch: the tokens and one boundary a sentence."""
        opened = (self.shards.open(info) for info in self.infos)
        filled = sum(int(np.count_nonzero(np.diff(shard.offsets))) for shard in opened)
        return sum(info["tokens"] for info in self.infos) + filled

    def begin(self) -> Position:
        """The position before the first window."""
        return {"block": 0, "rows": [[-1, 0]] * self.rows}

    def windows(self, position: Position) -> Iterator[tuple[Window, Position]]:
        """The windows from a position on, each with the position after it."""
        taken = int(position["block"])
        places = [(int(block), int(at)) for block, at in position["rows"]]
        read = [None if block < 0 else self._read(block) for block, _ in places]
        while True:
            keys = np.zeros((2, self.window, self.rows), np.int64)
            words = np.zeros((2, self.window, self.rows), np.int64)
            mask = np.zeros((self.window, self.rows), bool)
            starts = np.zeros((self.window, self.rows), bool)
            keys[0], keys[1] = self.vocabulary.bos, self.vocabulary.eos
            for row in range(self.rows):
                filled = 0
                while filled < self.window:
                    block = read[row]
                    number, at = places[row]
                    if block is None or at == len(block.starts_n):
                        if taken == self.epochs * int(self._blocks.sum()):
                            break
                        places[row], read[row] = (taken, 0), self._read(taken)
                        taken += 1
                        continue
                    n = min(self.window - filled, len(block.starts_n) - at)
                    keys[:, filled : filled + n, row] = block.keys_Sn[:, at : at + n]
                    words[:, filled : filled + n, row] = block.words_Sn[:, at : at + n]
                    starts[filled : filled + n, row] = block.starts_n[at : at + n]
                    mask[filled : filled + n, row] = True
                    places[row] = (number, at + n)
                    filled += n
            if not mask.any():
                return
            after = {"block": taken, "rows": [list(place) for place in places]}
            yield self._window(keys, words, mask, starts), after

    def _window(
        self,
        keys: Ints,
        words: Ints,
        mask: npt.NDArray[np.bool_],
        starts: npt.NDArray[np.bool_],
    ) -> Window:
        distinct, index = np.unique(keys[:, :, self.mine], return_inverse=True)
        return Window(
            index.reshape(2, self.window, len(self.mine)),
            words[:, :, self.mine],
            mask[:, self.mine],
            starts[:, self.mine],
            *self._spelled(distinct),
            np.unique(words[:, mask]),
            2 * int(mask.sum()),
        )

    def _spelled(self, keys: Ints) -> tuple[npt.NDArray[np.int32], Ints]:
        """Characters and bytes of distinct tokens: of words from a table, of others one by one."""
        if self._words is None:
            words = self.vocabulary.words
            self._words = self.encode(words).astype(np.int16), byte_lengths(words)
        words_NK, bytes_N = self._words
        known = keys < _OOV
        found = np.empty((len(keys), words_NK.shape[1]), np.int32)
        found[known] = words_NK[keys[known]]
        lengths = np.empty(len(keys), np.int64)
        lengths[known] = bytes_N[keys[known]]
        others = keys[~known]
        tokens = [
            self._table(int(key // _OOV) - 1).shard.dictionary[int(key % _OOV)].as_py()
            for key in others
        ]
        if tokens:
            found[~known], lengths[~known] = self.encode(tokens), byte_lengths(tokens)
        return found, lengths

    def _read(self, number: int) -> Block:
        """Read a block by its number in the order of all epochs."""
        epoch, place = divmod(number, int(self._blocks.sum()))
        shard_number, block = self._order(epoch)[place]
        table = self._table(int(shard_number))
        offsets = table.shard.offsets[block * self.block : (block + 1) * self.block + 1]
        offsets = offsets.astype(np.int64)
        ids = table.shard.ids[offsets[0] : offsets[-1]]
        lengths = np.diff(offsets)
        lengths = lengths[lengths > 0]
        return both_ways(table.keys[ids], table.words[ids], lengths, self.vocabulary)

    def _order(self, epoch: int) -> npt.NDArray[np.int32]:
        """The (shard, block) pairs of an epoch."""
        if epoch not in self._orders:
            self._orders = {k: v for k, v in self._orders.items() if k == epoch - 1}
            self._orders[epoch] = self._drawn_order(epoch)
        return self._orders[epoch]

    def _drawn_order(self, epoch: int) -> npt.NDArray[np.int32]:
        shards = np.arange(len(self.infos))
        random = None if self.seed is None else np.random.default_rng([self.seed, epoch])
        if random is not None:
            random.shuffle(shards)
        groups = []
        for at in range(0, len(shards), SHARDS_MIXED):
            chosen = shards[at : at + SHARDS_MIXED]
            pairs = [(shard, block) for shard in chosen for block in range(self._blocks[shard])]
            group = np.array(pairs, np.int32).reshape(-1, 2)
            if random is not None:
                random.shuffle(group)
            groups.append(group)
        return np.concatenate(groups)

    def _table(self, number: int) -> "_Table":
        if number not in self._tables:
            self._tables[number] = _Table.of(self.shards, self.infos, number, self.vocabulary)
            if len(self._tables) > 2 * SHARDS_MIXED:
                self._tables.popitem(last=False)
        self._tables.move_to_end(number)
        return self._tables[number]


@dataclass(frozen=True)
class _Table:
    """A shard with the word id of each of its types, and a key that tells distinct tokens apart."""

    shard: Shard
    words: Ints
    keys: Ints

    @classmethod
    def of(cls, shards: Shards, infos: list[Info], number: int, vocabulary: Vocabulary) -> "_Table":
        shard = shards.open(infos[number])
        words = vocabulary.ids(shard.types).astype(np.int64)
        unknown = words == vocabulary.unk
        own = (number + 1) * _OOV + np.arange(len(words))
        return cls(shard, words, np.where(unknown, own, words))


def byte_lengths(tokens: Sequence[str]) -> Ints:
    """The length of each token in UTF-8."""
    return np.array([len(token.encode()) for token in tokens], np.int64)


def both_ways(keys: Ints, words: Ints, lengths: Ints, vocabulary: Vocabulary) -> Block:
    """Lay sentences end to end in both reading orders, with their boundaries."""
    ends = np.cumsum(lengths + 2)
    inside = np.ones(int((lengths + 2).sum()), bool)
    inside[ends - 1] = inside[ends - lengths - 2] = False
    full_keys = np.full(len(inside), vocabulary.bos, np.int64)
    full_keys[ends - 1] = vocabulary.eos
    full_words = full_keys.copy()
    full_keys[inside], full_words[inside] = keys, words
    steps = np.arange(int((lengths + 1).sum()))
    first = np.cumsum(lengths + 1) - lengths - 1
    sentence = np.repeat(np.arange(len(lengths)), lengths + 1)
    step = steps - first[sentence]
    forward = (ends - lengths - 2)[sentence] + step
    backward = (ends - 1)[sentence] - step
    return Block(
        np.stack([full_keys[forward], full_keys[backward]]),
        np.stack([full_words[forward + 1], full_words[backward - 1]]),
        step == 0,
    )


def prefetched(
    windows: Iterator[tuple[Window, Position]], *, ahead: int = 2
) -> Generator[tuple[Window, Position], None, None]:
    """The same windows, made on another thread while the caller computes."""
    ready: queue.Queue[Any] = queue.Queue(ahead)
    stop = threading.Event()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in windows:
                if not put(item):
                    return
            put(None)
        except BaseException as error:  # handed to the caller, who raises it
            put(error)

    thread = threading.Thread(target=work, daemon=True, name="stream")
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()
