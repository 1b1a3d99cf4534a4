"""vocab: what counting every token in plain Python gives, from dictionaries alone."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from msgspec import structs, to_builtins

from elmo.data.characters import Characters
from elmo.data.shards import Shards, write_shards
from elmo.data.vocabulary import Vocabulary
from elmo.errors import ElmoError
from elmo.io.atomic import write_json
from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import VocabSettings
from pipeline.stages import vocab
from pipeline.stages.stage import Figures
from tests.files import contents

pytestmark = pytest.mark.usefixtures("in_process")

CLUSTER = Cluster(workers=0, cpus=1, gpu=False, actors=2)
SENTENCES = [
    *[["the", "cat", "sat"]] * 3,
    ["b", "é", "a", "고양이", "🙂", "z", "Z"],
    [],
    ["<S>", "<UNK>", "</S>", "the", "x" * 60],
    ["held", "out", "the", "é"],
]


def params(**changes: object) -> VocabSettings:
    plain = {"min_count": 1, "max_words": 0, "characters": "bytes"}
    return VocabSettings(**{**plain, "min_character_count": 1, "max_characters": 50, **changes})  # type: ignore[arg-type]


def count(shards: Shards, out: Path, chosen: VocabSettings | None = None) -> Figures:
    """Run the stage with a work folder beside `out`."""
    work = Location(out.parent / "runs")
    chosen = chosen or params()
    return vocab.run(shards.location, Location(out), chosen, work=work, cluster=CLUSTER)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return write_shards(tmp_path / "shards", SENTENCES, heldout_every=7, shard_sentences=2)


def test_words_are_those_of_counting_every_training_token(shards: Shards, tmp_path: Path) -> None:
    count(shards, tmp_path / "out")
    counts = Counter(token for row in SENTENCES[:6] for token in row)
    for mark in ("<S>", "</S>", "<UNK>"):
        del counts[mark]
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    found = Vocabulary.load(tmp_path / "out")
    assert found.words == ["<S>", "</S>", "<UNK>", *expected]
    assert found.counts is not None
    assert found.counts[3:] == [counts[word] for word in expected]


def test_boundaries_count_sentences_and_unk_what_is_no_word(shards: Shards, tmp_path: Path) -> None:
    count(shards, tmp_path / "out", params(min_count=3))
    found = Vocabulary.load(tmp_path / "out")
    assert found.words == ["<S>", "</S>", "<UNK>", "the", "cat", "sat"]
    assert found.counts == [5, 5, 9, 4, 3, 3]  # <UNK>: 8 rare tokens and itself, written once


def test_at_most_so_many_words_the_marks_included(shards: Shards, tmp_path: Path) -> None:
    metrics = count(shards, tmp_path / "out", params(max_words=5))
    assert Vocabulary.load(tmp_path / "out").words[3:] == ["the", "cat"]
    assert metrics["words"] == 5


def test_metrics_say_what_is_covered(shards: Shards, tmp_path: Path) -> None:
    metrics = count(shards, tmp_path / "out")
    assert metrics == {
        "words": 14,
        "types": 14,
        "tokens": 21,
        "coverage": 20 / 21,
        "heldout_coverage": 2 / 4,
        "characters": 261,
    }


def test_files_are_as_the_vocabulary_itself_writes_them(shards: Shards, tmp_path: Path) -> None:
    count(shards, tmp_path / "out")
    (tmp_path / "again").mkdir()
    Vocabulary.load(tmp_path / "out").save(tmp_path / "again")
    for name in ("words.txt", "counts.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_unicode_characters_come_from_counts(shards: Shards, tmp_path: Path) -> None:
    chosen = params(characters="unicode", min_character_count=3)
    metrics = count(shards, tmp_path / "out", chosen)
    counts = Counter("".join(token for row in SENTENCES[:6] for token in row))
    frequent = sorted((c for c in counts if counts[c] >= 3), key=lambda c: (-counts[c], c))
    found = Characters.load(tmp_path / "out" / "characters.json")
    assert found.symbols == tuple(frequent)
    assert metrics["characters"] == found.size == len(frequent) + 6


def test_the_division_into_shards_does_not_show(tmp_path: Path) -> None:
    for size in (1, 100):
        shards = write_shards(tmp_path / f"s{size}", SENTENCES, shard_sentences=size)
        chosen = params(characters="unicode")
        count(shards, tmp_path / f"out{size}", chosen)
    assert contents(tmp_path / "out1") == contents(tmp_path / "out100")


def test_the_token_that_2018_readers_skip_becomes_no_word(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", [["!!!MAXTERMID", "a", "!!!MAXTERMID"], ["b"]])
    metrics = count(shards, tmp_path / "out")
    found = Vocabulary.load(tmp_path / "out")
    assert found.words[3:] == ["a", "b"] and metrics["words"] == len(found) == 5
    assert found.counts == [2, 2, 2, 1, 1]  # it counts as <UNK>


def test_interrupted_and_run_again_counts_no_shard_twice(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [entry.file for entry in shards.entries()]
    counted: list[str] = []

    def interrupt_third(function, items, **_):  # type: ignore[no-untyped-def]
        for item in items:
            counted.append(item[1].file)
            if len(counted) == 3:
                raise KeyboardInterrupt
            yield function(item)

    count(shards, tmp_path / "whole")
    monkeypatch.setattr(workers, "map_tasks", interrupt_third)
    with pytest.raises(KeyboardInterrupt):
        count(shards, tmp_path / "cut")
    count(shards, tmp_path / "cut")
    assert counted == [*names[:3], *names[2:]]
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_two_shards_of_the_same_bytes_count_twice(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", [["a"], ["a"]], shard_sentences=1)
    entries = [shards.entries()[0], structs.replace(shards.entries()[0], file="train-00001.arrow")]
    again = entries[1].with_corpus_position(sentences_before=1, documents_before=1)
    shutil.copy(
        shards.location.local / "train-00000.arrow", shards.location.local / "train-00001.arrow"
    )
    manifest = structs.replace(shards.manifest, shards=(entries[0], again))
    write_json(shards.location.local / "manifest.json", to_builtins(manifest))
    count(shards, tmp_path / "out")
    assert Vocabulary.load(tmp_path / "out").counts == [2, 2, 0, 2]


def test_an_altered_shard_is_named_and_nothing_is_left(shards: Shards, tmp_path: Path) -> None:
    path = shards.location.local / "train-00001.arrow"
    data = path.read_bytes()
    place = data.index(b"cat")
    path.write_bytes(data[:place] + b"bat" + data[place + 3 :])
    with pytest.raises(ElmoError, match=r"train-00001\.arrow: truncated or altered"):
        count(shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert {p.suffix for p in (tmp_path / "runs/vocab-out").iterdir()} == {"", ".arrow"}


def test_a_count_that_no_word_has_is_refused(shards: Shards, tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="vocab.min_count 99 removes every word of"):
        count(shards, tmp_path / "out", params(min_count=99))
