"""Shards: what is written is what is read, memory-mapped, and damage is named."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec import to_builtins

from elmo.data import shards as shards_module
from elmo.data.manifest import SplitCounts
from elmo.data.shards import Shards, describe_shard, write_shards
from elmo.errors import ElmoError
from tests.files import contents

SENTENCES = [["the", "cat", "the"], [], ["naïve", "고양이", "<S>"], ["🙂"], ["the"], ["x" * 60]]


def test_every_sentence_comes_back_with_its_place(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES, heldout_every=3, shard_sentences=2)
    found = {}
    for entry in shards.entries():
        shard = shards.open(entry)
        for row in range(len(shard)):
            found[int(shard.sentence_ids[row])] = (shard.split, shard.tokens(row))
    assert [found[i][1] for i in range(len(SENTENCES))] == SENTENCES
    assert [i for i in found if found[i][0] == "heldout"] == [2, 5]
    assert shards.manifest.counts.blank_lines == 1


def test_types_are_the_distinct_tokens_in_order_of_occurrence(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES)
    shard = shards.open(shards.entries("train")[0])
    assert shard.types == ["the", "cat", "naïve", "고양이", "<S>", "🙂", "x" * 60]
    assert shard.counts().tolist() == [3, 1, 1, 1, 1, 1, 1]


def test_columns_are_mapped_from_the_file_and_not_copied(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", [["a", "b"]] * 20_000)
    before = pa.total_allocated_bytes()
    shard = shards.open(shards.entries("train")[0])
    assert pa.total_allocated_bytes() - before < 4096
    assert not shard.ids.flags.owndata and not shard.offsets.flags.owndata


def test_the_same_sentences_give_the_same_bytes_and_digest(tmp_path: Path) -> None:
    one = write_shards(tmp_path / "one", SENTENCES, heldout_every=2)
    two = write_shards(tmp_path / "two", SENTENCES, heldout_every=2)
    other = write_shards(tmp_path / "other", [*SENTENCES[:-1], ["y"]], heldout_every=2)
    assert one.digest == two.digest != other.digest
    assert contents(one.location.local) == contents(two.location.local)


def test_any_arrow_reader_opens_a_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES)
    with pa.ipc.open_file(str(shards.location.local / "train-00000.arrow")) as reader:
        table = reader.read_all()
    assert table["tokens"].to_pylist() == SENTENCES
    assert table.schema.field("tokens").type == pa.list_(pa.dictionary(pa.int32(), pa.string()))
    assert table.schema.metadata[b"schema"] == b"2"


def test_counts_of_a_split_are_its_own(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES, heldout_every=3)
    assert (shards.tokens("train"), shards.tokens("heldout"), shards.tokens()) == (5, 4, 9)
    assert shards.manifest.splits["heldout"] == SplitCounts(documents=2, sentences=2, tokens=4)


def test_offsets_of_the_manifest_are_added_to_the_ids_and_the_file_stays(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES)
    path = shards.location.local / "train-00000.arrow"
    before = path.read_bytes()
    entry = describe_shard(path, split="train").with_corpus_position(
        sentences_before=1000, documents_before=70
    )
    shard = shards.open(entry)
    assert shard.sentence_ids.tolist() == list(range(1000, 1006))
    assert shard.document_ids.tolist() == list(range(70, 76))
    assert (entry.first_sentence_id, entry.last_sentence_id) == (1000, 1005)
    assert [shard.tokens(i) for i in range(6)] == SENTENCES
    assert path.read_bytes() == before


def test_an_arrow_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES)
    path = shards.location.local / "train-00000.arrow"
    batch = pa.RecordBatch.from_pydict({"x": [1]})
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(ElmoError, match="is an Arrow file but not a shard"):
        describe_shard(path, split="train")


def test_a_folder_of_another_kind_or_schema_is_refused(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES)
    path = shards.location.local / "manifest.json"
    path.write_text(json.dumps(to_builtins(shards.manifest) | {"schema": 1}))
    with pytest.raises(ElmoError, match="has schema 1"):
        Shards(shards.location)
    path.write_text(json.dumps({"kind": "store"}))
    with pytest.raises(ElmoError, match="not the manifest of a shards folder"):
        Shards(shards.location)
    with pytest.raises(ElmoError, match="no such file"):
        Shards(tmp_path / "nowhere")


def test_no_split_but_train_and_heldout(tmp_path: Path) -> None:
    with pytest.raises(ElmoError, match="no split 'test'"):
        write_shards(tmp_path / "s", SENTENCES).entries("test")


def test_a_shard_of_blank_lines_alone_is_a_shard(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "s", [[], []])
    shard = shards.open(shards.entries("train")[0])
    assert len(shard) == 2 and shard.types == [] and np.diff(shard.offsets).tolist() == [0, 0]


WRONG = {
    "no shards": (lambda m: m.pop("shards"), "missing required field `shards`"),
    "mistyped count": (
        lambda m: m["counts"].update(tokens="9"),
        "counts.tokens: must be a whole number",
    ),
    "huge": (lambda m: m["shards"][0].update(tokens=10**18), r"shards\[0\].tokens: "),
    "outside": (lambda m: m["shards"][0].update(file="../x.arrow"), r"shards\[0\].file: "),
    "split": (lambda m: m["shards"][0].update(split="test"), r"shards\[0\].split: "),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_manifest_is_one_line_that_names_the_key(tmp_path: Path, kind: str) -> None:
    change, message = WRONG[kind]
    shards = write_shards(tmp_path / "s", SENTENCES, heldout_every=3, shard_sentences=2)
    path = shards.location.local / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(ElmoError, match=rf"manifest\.json: .*{message}") as error:
        Shards(shards.location)
    assert "\n" not in str(error.value)


def test_a_process_checks_a_files_bytes_once_and_again_when_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write_shards(tmp_path / "s", SENTENCES, shard_sentences=3)
    checked: list[str] = []
    real = shards_module.check_sha256
    monkeypatch.setattr(
        shards_module,
        "check_sha256",
        lambda path, sha: checked.append(path.name) or real(path, sha),
    )
    for _ in range(3):
        for entry in Shards(shards.location).entries():
            shards.open(entry)
    assert checked == ["train-00000.arrow", "train-00001.arrow"]
    path = shards.location.local / "train-00001.arrow"
    data = path.read_bytes()
    start = data.index(b"xxxx")
    path.write_bytes(data[:start] + b"y" + data[start + 1 :])
    os.utime(path, ns=(1, 1))  # another time, however coarse the clock of the disk
    with pytest.raises(ElmoError, match=r"train-00001\.arrow: truncated or altered"):
        shards.open(shards.entries()[1])
