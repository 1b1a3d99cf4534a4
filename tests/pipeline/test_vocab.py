"""vocab: what counting every token in plain Python gives, from dictionaries alone."""

from collections import Counter
from pathlib import Path

import pytest

from elmo.characters import Characters
from elmo.errors import ElmoError
from elmo.shards import Shards, write_shards
from elmo.vocabulary import Vocabulary
from pipeline import cluster as workers
from pipeline import vocab
from pipeline.params import Cluster, Vocab

CLUSTER = Cluster(workers=0, cpus=1, gpu=False, actors=2)
SENTENCES = [
    *[["the", "cat", "sat"]] * 3,
    ["b", "é", "a", "고양이", "🙂", "z", "Z"],
    [],
    ["<S>", "<UNK>", "</S>", "the", "x" * 60],
    ["held", "out", "the", "é"],
]


@pytest.fixture(autouse=True)
def in_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count here, but where a test asks for Ray."""
    if "ray" not in request.keywords:
        monkeypatch.setattr(workers, "tasks", lambda function, items, **_: map(function, items))


def params(**changes: object) -> Vocab:
    plain = {"min_count": 1, "max_words": 0, "characters": "bytes"}
    return Vocab(**{**plain, "min_character_count": 1, "max_characters": 50, **changes})  # type: ignore[arg-type]


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return write_shards(tmp_path / "shards", SENTENCES, heldout_every=7, shard_sentences=2)


def test_words_are_those_of_counting_every_training_token(shards: Shards, tmp_path: Path) -> None:
    vocab.run(shards.folder, tmp_path / "out", params(), cluster=CLUSTER)
    counts = Counter(token for row in SENTENCES[:6] for token in row)
    for mark in ("<S>", "</S>", "<UNK>"):
        del counts[mark]
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    found = Vocabulary.load(tmp_path / "out")
    assert found.words == ["<S>", "</S>", "<UNK>", *expected]
    assert found.counts is not None
    assert found.counts[3:] == [counts[word] for word in expected]


def test_ties_are_broken_by_codepoint(shards: Shards, tmp_path: Path) -> None:
    vocab.run(shards.folder, tmp_path / "out", params(), cluster=CLUSTER)
    words = Vocabulary.load(tmp_path / "out").words
    assert words[6:] == ["Z", "a", "b", "x" * 60, "z", "é", "고양이", "🙂"]


def test_boundaries_count_sentences_and_unk_what_is_no_word(shards: Shards, tmp_path: Path) -> None:
    vocab.run(shards.folder, tmp_path / "out", params(min_count=3), cluster=CLUSTER)
    found = Vocabulary.load(tmp_path / "out")
    assert found.words == ["<S>", "</S>", "<UNK>", "the", "cat", "sat"]
    assert found.counts == [5, 5, 9, 4, 3, 3]  # <UNK>: 8 rare tokens and itself, written once


def test_at_most_so_many_words_the_marks_included(shards: Shards, tmp_path: Path) -> None:
    metrics = vocab.run(shards.folder, tmp_path / "out", params(max_words=5), cluster=CLUSTER)
    assert Vocabulary.load(tmp_path / "out").words[3:] == ["the", "cat"]
    assert metrics["words"] == 5


def test_metrics_say_what_is_covered(shards: Shards, tmp_path: Path) -> None:
    metrics = vocab.run(shards.folder, tmp_path / "out", params(), cluster=CLUSTER)
    assert metrics == {
        "words": 14,
        "types": 14,
        "tokens": 21,
        "coverage": 20 / 21,
        "heldout_coverage": 2 / 4,
        "long_tokens": 1,
        "characters": 261,
    }


def test_files_are_as_the_vocabulary_itself_writes_them(shards: Shards, tmp_path: Path) -> None:
    vocab.run(shards.folder, tmp_path / "out", params(), cluster=CLUSTER)
    (tmp_path / "again").mkdir()
    Vocabulary.load(tmp_path / "out").save(tmp_path / "again")
    for name in ("words.txt", "counts.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_unicode_characters_come_from_counts(shards: Shards, tmp_path: Path) -> None:
    chosen = params(characters="unicode", min_character_count=3)
    metrics = vocab.run(shards.folder, tmp_path / "out", chosen, cluster=CLUSTER)
    counts = Counter("".join(token for row in SENTENCES[:6] for token in row))
    frequent = sorted((c for c in counts if counts[c] >= 3), key=lambda c: (-counts[c], c))
    found = Characters.load(tmp_path / "out" / "characters.json")
    assert found.symbols == tuple(frequent)
    assert metrics["characters"] == found.size == len(frequent) + 6


def test_a_token_is_long_by_its_bytes_or_its_characters(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", [["고" * 17, "a" * 48, "a" * 49], ["고" * 17]])
    assert vocab.run(shards.folder, tmp_path / "b", params(), cluster=CLUSTER)["long_tokens"] == 3
    chosen = params(characters="unicode")
    assert vocab.run(shards.folder, tmp_path / "u", chosen, cluster=CLUSTER)["long_tokens"] == 1


def test_the_division_into_shards_does_not_show(tmp_path: Path) -> None:
    for size in (1, 100):
        shards = write_shards(tmp_path / f"s{size}", SENTENCES, shard_sentences=size)
        chosen = params(characters="unicode")
        vocab.run(shards.folder, tmp_path / f"out{size}", chosen, cluster=CLUSTER)
    for name in ("words.txt", "counts.txt", "characters.json"):
        assert (tmp_path / "out1" / name).read_bytes() == (tmp_path / "out100" / name).read_bytes()


def test_merging_in_between_changes_nothing(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab.run(shards.folder, tmp_path / "one", params(), cluster=CLUSTER)
    monkeypatch.setattr(vocab, "_MERGED_AT", 3)
    vocab.run(shards.folder, tmp_path / "two", params(), cluster=CLUSTER)
    for name in ("words.txt", "counts.txt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.ray
def test_workers_count_what_one_process_counts(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = vocab.run(shards.folder, tmp_path / "one", params(), cluster=CLUSTER)
    monkeypatch.setattr(workers, "tasks", lambda function, items, **_: map(function, items))
    assert vocab.run(shards.folder, tmp_path / "two", params(), cluster=CLUSTER) == one
    assert (tmp_path / "one/words.txt").read_bytes() == (tmp_path / "two/words.txt").read_bytes()


def test_an_altered_shard_is_named_and_nothing_is_left(shards: Shards, tmp_path: Path) -> None:
    path = shards.folder / "train-00001.arrow"
    data = path.read_bytes()
    place = data.index(b"cat")
    path.write_bytes(data[:place] + b"bat" + data[place + 3 :])
    with pytest.raises(ElmoError, match=r"train-00001\.arrow: truncated or altered"):
        vocab.run(shards.folder, tmp_path / "out", params(), cluster=CLUSTER)
    assert [p.name for p in tmp_path.iterdir()] == ["shards"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"min_count": 0}, "vocab.min_count must be 1 or more, found 0"),
        ({"min_count": 99}, "vocab.min_count 99 leaves no word of"),
        ({"max_words": 3}, "vocab.max_words must be 0 .no limit. or 4 or more, found 3"),
        ({"characters": "latin"}, "vocab.characters must be bytes or unicode, found 'latin'"),
        ({"max_characters": 2}, "vocab.max_characters must be 3 or more, found 2"),
    ],
)
def test_a_setting_out_of_range_is_refused(
    shards: Shards, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(ElmoError, match=message):
        vocab.run(shards.folder, tmp_path / "out", params(**change), cluster=CLUSTER)
