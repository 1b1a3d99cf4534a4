"""Nothing lost, nothing twice, the same order for any number of workers, resumable anywhere."""

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.stream import Window, WindowStream, prefetch
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError

WORDS = ["<S>", "</S>", "<UNK>", *"abcdefgh"]
VOCABULARY = Vocabulary(WORDS, [1] * len(WORDS))
CHARACTERS = Characters()


def sentences(count: int) -> list[list[str]]:
    """Sentences whose tokens are told apart; some are unknown words, some sentences are empty."""
    draw = random.Random(3)
    tokens = [*"abcdefgh", "zoo", "übel", "한국어"]
    return [[draw.choice(tokens) for _ in range(draw.randrange(8))] for _ in range(count)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("stream") / "shards"
    return write_shards(folder, sentences(97), heldout_every=10, shard_sentences=20)


def stream(shards: Shards, encode: Callable = CHARACTERS.encode, **changed: object) -> WindowStream:
    settings = {
        "split": "train",
        "rows": 5,
        "window": 7,
        "block_sentences": 3,
        "epochs": 1,
        "seed": 1,
    }
    return WindowStream(shards, VOCABULARY, encode, **(settings | changed))  # type: ignore[arg-type]


def windows(stream: WindowStream) -> list[Window]:
    return [window for window, _ in stream.windows(stream.first_position())]


def texts(window: Window) -> np.ndarray:
    """The input tokens (S, T, B) read back from their characters, bytes between BOW and EOW."""
    found = []
    for row in window.characters_NK:
        inside = [c for c in row.tolist() if c < 258]
        special = {256: "<S>", 257: "</S>"}
        found.append(special[inside[0]] if inside[0] in special else bytes(inside).decode())
    return np.array(found, object)[window.index_STB]


def rows_of(
    stream: WindowStream,
) -> list[tuple[list[str], list[str], list[int], list[int], list[bool]]]:
    """Each row end to end: inputs both ways, targets both ways, starts."""
    every = windows(stream)
    joined = []
    for b in range(every[0].index_STB.shape[2]):
        row: tuple[list, ...] = ([], [], [], [], [])
        for window in every:
            read, on = texts(window), window.mask_TB[:, b]
            row[0].extend(read[0, on, b])
            row[1].extend(read[1, on, b])
            row[2].extend(window.targets_STB[0, on, b].tolist())
            row[3].extend(window.targets_STB[1, on, b].tolist())
            row[4].extend(window.reset_TB[on, b].tolist())
        joined.append(row)
    return joined  # type: ignore[return-value]


def read_sentences(stream: WindowStream) -> list[list[str]]:
    """The sentences of a stream, read back from its forward inputs; checks all else beside them."""
    found = []
    for forward, backward, targets, mirrored, starts in rows_of(stream):
        begins = [k for k, start in enumerate(starts) if start]
        assert begins[0] == 0
        for at, end in zip(begins, [*begins[1:], len(starts)], strict=True):
            tokens = forward[at + 1 : end]
            ids = VOCABULARY.ids(tokens).tolist()
            assert forward[at] == "<S>" and backward[at] == "</S>"
            assert backward[at + 1 : end] == tokens[::-1]
            assert targets[at:end] == [*ids, VOCABULARY.eos]
            assert mirrored[at:end] == [*ids[::-1], VOCABULARY.bos]
            found.append(tokens)
    return found


def read_rows_with_text(stream: WindowStream) -> list[list[str]]:
    """The sentences of a stream of which some rows may be empty."""
    found: list[list[str]] = []
    for forward, _, _, _, starts in rows_of(stream):
        for token, start in zip(forward, starts, strict=True):
            found += [[]] if start else []
            found[-1] += [] if start else [token]
    return found


def train_sentences() -> list[list[str]]:
    return [s for k, s in enumerate(sentences(97)) if k % 10 != 9 and s]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("epochs", [1, 3])
def test_every_token_of_every_epoch_is_read_once_in_both_directions(
    shards: Shards, seed: int | None, epochs: int
) -> None:
    found = read_sentences(stream(shards, seed=seed, epochs=epochs))
    once = Counter(map(tuple, train_sentences()))
    assert Counter(map(tuple, found)) == {s: n * epochs for s, n in once.items()}


def test_without_a_seed_one_row_reads_the_corpus_in_its_order(shards: Shards) -> None:
    assert read_sentences(stream(shards, seed=None, rows=1)) == train_sentences()


def test_the_order_is_that_of_every_release(tmp_path: Path, shards: Shards) -> None:
    """A checkpoint holds a place in this order: another order reads other text from there on."""
    many = write_shards(tmp_path / "shards", [[x] for x in "abcdefgh" * 9], shard_sentences=2)
    frozen = (
        (shards, 1, "a18b99063894dc7a"),
        (many, 1, "b49b7325060d29ff"),
        (many, 2, "a8a7d3bfa9c2a5b1"),
    )
    for source, seed, expected in frozen:
        every = windows(stream(source, epochs=2, seed=seed))
        read = np.concatenate([window.targets_STB for window in every], 1)
        assert hashlib.sha256(read.astype("<i8").tobytes()).hexdigest()[:16] == expected


def test_blocks_are_shuffled_within_a_shard(tmp_path: Path) -> None:
    """Where there is one shard, nothing else changes the order."""
    text = [[letter] for letter in "abcdefgh"]
    one = write_shards(tmp_path / "one", text)
    orders = [
        read_sentences(stream(one, rows=1, block_sentences=2, seed=seed)) for seed in range(5)
    ]
    assert all(sorted(order) == text for order in orders)
    assert len({str(order) for order in orders}) > 3


def test_shards_come_together_in_other_groups_in_each_epoch(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elmo.data.stream.SHARDS_PER_GROUP", 1)
    read = stream(shards, rows=1, epochs=4)
    orders = [
        tuple(int(read._get_group(epoch * len(read.entries) + k).blocks_M2[0, 0]) for k in range(5))
        for epoch in range(4)
    ]
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 3, 4)}
    assert len(set(orders)) > 1


def test_blocks_of_neighbouring_sentences_stay_together(shards: Shards) -> None:
    found = read_sentences(stream(shards, rows=1, block_sentences=20))
    source = train_sentences()
    followed = sum(
        b == source[(source.index(a) + 1) % len(source)]
        for a, b in zip(found, found[1:], strict=False)
        if source.count(a) == 1
    )
    assert followed > 0.8 * len(found)


@pytest.mark.parametrize("seed", [None, 1])
def test_rows_end_together(shards: Shards, tmp_path: Path, seed: int | None) -> None:
    """A row reads an equal part of each group of shards, but for half a sentence on either side."""
    many = write_shards(tmp_path / "many", sentences(800), shard_sentences=20)  # of two groups
    for text, groups in ((shards, 1), (many, 2)):
        epochs = 3
        every = windows(stream(text, seed=seed, epochs=epochs))
        read = sum(window.mask_TB.sum(0) for window in every)
        assert read.max() - read.min() <= 8 * groups * epochs
        full = [window for window in every if window.mask_TB.all()]
        assert len(every) - len(full) <= 1 + 8 * groups * epochs // 7


def test_a_row_without_text_waits(shards: Shards) -> None:
    """Where there are more rows than sentences, too, all of them are read, and once."""
    found = read_rows_with_text(stream(shards, split="heldout", rows=30, epochs=2, seed=1))
    once = Counter(tuple(s) for k, s in enumerate(sentences(97)) if k % 10 == 9 and s)
    assert Counter(map(tuple, found)) == {s: 2 * n for s, n in once.items()}


@pytest.mark.parametrize("split", [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[0], [1, 2, 3], [4]]])
def test_workers_read_the_rows_that_one_would_read(shards: Shards, split: list[list[int]]) -> None:
    alone = windows(stream(shards))
    parts = [windows(stream(shards, own_rows=mine)) for mine in split]
    for k, whole in enumerate(alone):
        mine = [part[k] for part in parts]
        for name in ("targets_STB", "mask_TB", "reset_TB"):
            joined = np.concatenate([getattr(window, name) for window in mine], -1)
            np.testing.assert_array_equal(joined, getattr(whole, name))
        read = np.concatenate([texts(window) for window in mine], -1)
        np.testing.assert_array_equal(read, texts(whole))
        words = np.unique(np.concatenate([window.words for window in mine]))
        np.testing.assert_array_equal(words, whole.words)
        assert {window.count for window in mine} == {whole.count}
    assert [len(part) for part in parts] == [len(alone)] * len(parts)


def test_a_worker_reads_the_blocks_of_its_own_rows_alone(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[tuple[int, int]] = []
    read = WindowStream._read_block
    monkeypatch.setattr(
        WindowStream,
        "_read_block",
        lambda self, *which: [reads.append(which), read(self, *which)][1],
    )
    parts = []
    for mine in ([0], [1, 2], [3, 4]):
        reads.clear()
        windows(stream(shards, own_rows=mine, epochs=2))
        assert len(set(reads)) >= len(reads) - 2 * (len(mine) - 1)
        parts.append(set(reads))
    # In each of two epochs a block may be cut between two workers.
    assert 0 <= sum(map(len, parts)) - len(set.union(*parts)) <= 2 * 2
    reads.clear()
    windows(stream(shards, epochs=2))
    assert set.union(*parts) == set(reads)


def test_words_and_count_are_those_of_all_rows_that_still_read(shards: Shards) -> None:
    for window in windows(stream(shards)):
        np.testing.assert_array_equal(
            window.words, np.unique(window.targets_STB[:, window.mask_TB])
        )
        assert window.count == 2 * window.mask_TB.sum()


def test_a_position_taken_anywhere_continues_with_the_same_windows(shards: Shards) -> None:
    whole = list(stream(shards, epochs=2).windows(stream(shards).first_position()))
    for k in range(len(whole) - 1):
        rest = stream(shards, epochs=2).windows(whole[k][1]())
        for (window, after), (expected, position_after) in zip(rest, whole[k + 1 :], strict=True):
            np.testing.assert_array_equal(texts(window), texts(expected))
            np.testing.assert_array_equal(window.targets_STB, expected.targets_STB)
            np.testing.assert_array_equal(window.mask_TB, expected.mask_TB)
            assert after() == position_after()


def test_each_distinct_token_of_a_window_is_encoded_once(shards: Shards) -> None:
    for window in windows(stream(shards)):
        rows = {row.tobytes() for row in window.characters_NK}
        # An unknown token has a key in each shard, so it may stand twice when shards meet.
        assert len(window.characters_NK) - len(rows) <= 3 * 4
        assert set(window.index_STB.flat) == set(range(len(window.characters_NK)))


def test_tokens_counts_the_predictions_of_an_epoch(shards: Shards) -> None:
    counted = sum(int(window.mask_TB.sum()) for window in windows(stream(shards)))
    assert stream(shards).predictions_per_epoch == counted
    assert counted == sum(len(s) + 1 for s in train_sentences())


def test_more_shards_than_are_kept_open_read_the_same(tmp_path: Path) -> None:
    many = write_shards(tmp_path / "many", [[w] for w in "abcdefgh" * 20], shard_sentences=1)
    found = read_sentences(stream(many, block_sentences=1))
    assert Counter(map(tuple, found)) == {(w,): 20 for w in "abcdefgh"}


def test_a_split_without_tokens_is_refused(tmp_path: Path) -> None:
    empty = write_shards(tmp_path / "empty", [["a"], []], heldout_every=2)
    with pytest.raises(ElmoError, match="heldout"):
        stream(empty, split="heldout")


def test_prefetched_gives_the_same_windows_and_ends_its_thread(shards: Shards) -> None:
    expected = [after() for _, after in stream(shards).windows(stream(shards).first_position())]
    assert [
        after() for _, after in prefetch(stream(shards).windows(stream(shards).first_position()))
    ] == (expected)
    left = prefetch(stream(shards).windows(stream(shards).first_position()))
    next(left)
    left.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stream")]


def test_prefetched_raises_what_went_wrong_on_its_thread(shards: Shards) -> None:
    broken = stream(shards)
    broken.encode = _no_characters
    with pytest.raises(ZeroDivisionError):
        list(prefetch(broken.windows(broken.first_position())))


def _no_characters(tokens: list[str]) -> np.ndarray:
    raise ZeroDivisionError


@pytest.mark.parametrize("count", [32_761, 32_762, 32_763, 33_000])
def test_ids_of_more_characters_than_16_bits_hold(shards: Shards, count: int) -> None:
    """Beyond 32,762 characters the marks, and then characters, would wrap to negative ids."""
    symbols = tuple(chr(0x4E00 + k) for k in range(count - 8)) + tuple("abcdefgh")
    characters = Characters(symbols)
    for window in windows(stream(shards, characters.encode, rows=2, window=4)):
        assert window.characters_NK.min() >= 0
        assert window.characters_NK.max() == characters.size - 1  # padding
