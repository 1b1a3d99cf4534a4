"""Shards whose bytes are not those of their manifest, and ones that were signed again."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elmo.data.shards import SCHEMA
from elmo.io.records import sha256
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("vocab", "features", "pretrain", "finetune")
FILE = "task/train-00000.arrow"


@pytest.mark.parametrize(("command", "what"), paired(READERS, DAMAGE))
def test_damaged_shards(case: Path, command: str, what: str) -> None:
    DAMAGE[what](case / FILE)
    refused(*COMMANDS[command], cwd=case, names=FILE)


@pytest.mark.parametrize(("command", "seed"), paired(["vocab", "features"], range(8)))
def test_a_flipped_bit(case: Path, command: str, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray((case / FILE).read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    (case / FILE).write_bytes(data)
    refused(*COMMANDS[command], cwd=case, names=FILE)


@dataclass
class Content:
    """What a shard of the sentences `a b` and `b` holds."""

    sentence_ids: Any = field(default_factory=lambda: [0, 1])
    document_ids: Any = field(default_factory=lambda: [0, 1])
    offsets: Any = field(default_factory=lambda: [0, 2, 3])
    ids: Any = field(default_factory=lambda: [0, 1, 1])
    types: Any = field(default_factory=lambda: ["a", "b"])

    def batch(self) -> pa.RecordBatch:
        types = self.types if isinstance(self.types, pa.Array) else pa.array(self.types)
        tokens = pa.DictionaryArray.from_arrays(pa.array(self.ids, pa.int32()), types, safe=False)
        lists = pa.ListArray.from_arrays(pa.array(self.offsets, pa.int32()), tokens)
        ids = [pa.array(one, pa.int64()) for one in (self.sentence_ids, self.document_ids)]
        return pa.RecordBatch.from_arrays([*ids, lists], schema=SCHEMA)


def write(path: Path, *batches: pa.RecordBatch, schema: pa.Schema | None = None) -> None:
    with pa.ipc.new_file(str(path), schema or batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def stream(path: Path) -> None:
    batch = Content().batch()
    with pa.ipc.new_stream(str(path), batch.schema) as writer:
        writer.write_batch(batch)


def renamed(path: Path) -> None:
    batch = Content().batch()
    names = ["sentence", "document_id", "tokens"]
    write(path, pa.RecordBatch.from_arrays(batch.columns, names=names))


def plain_tokens(path: Path) -> None:
    columns = [pa.array([0, 1]), pa.array([0, 1]), pa.array([["a", "b"], ["b"]])]
    write(path, pa.RecordBatch.from_arrays(columns, names=SCHEMA.names))


def not_utf8() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 1, 2], np.int32))
    return pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a\xff"))


# Shards that are whole to their checksum, and of which nothing can be believed.
SIGNED: dict[str, Callable[[Path], object]] = {
    "no rows": lambda path: write(path, Content().batch().slice(0, 0)),
    "no batch": lambda path: write(path, schema=SCHEMA),
    "two batches": lambda path: write(path, Content().batch(), Content().batch()),
    "a stream": stream,
    "Parquet": lambda path: pq.write_table(pa.table({"a": [1]}), path),
    "another column": renamed,
    "tokens as strings": plain_tokens,
    "a sentence twice": lambda path: write(path, Content(sentence_ids=[0, 0]).batch()),
    "sentences that fall": lambda path: write(path, Content(sentence_ids=[1, 0]).batch()),
    "sentences that begin late": lambda path: write(path, Content(sentence_ids=[3, 4]).batch()),
    "a sentence below 0": lambda path: write(path, Content(sentence_ids=[-1, 1]).batch()),
    "no document": lambda path: write(path, Content(document_ids=[0, None]).batch()),
    "no token": lambda path: write(path, Content(ids=[0, None, 1]).batch()),
    "a token of no type": lambda path: write(path, Content(ids=[0, 1, 7]).batch()),
    "a token below 0": lambda path: write(path, Content(ids=[0, -1, 1]).batch()),
    "a type too many": lambda path: write(path, Content(types=["a", "b", "c"]).batch()),
    "no type": lambda path: write(path, Content(types=["a", None]).batch()),
    "a type that is not UTF-8": lambda path: write(path, Content(types=not_utf8()).batch()),
    "offsets that fall": lambda path: write(path, Content(offsets=[0, 3, 2]).batch()),
}


@pytest.mark.parametrize(("command", "what"), paired(["vocab", "features"], SIGNED))
def test_shards_signed_again(case: Path, command: str, what: str) -> None:
    SIGNED[what](case / FILE)
    sign(case / "task", {"sentences": 2, "tokens": 3, "types": 2})
    refused(*COMMANDS[command], cwd=case, names=FILE)


def sign(folder: Path, counts: dict[str, int]) -> None:
    """Make the manifest agree with a first shard of two sentences, so far as sums show it."""
    path = folder / "manifest.json"
    value = json.loads(path.read_text())
    entry = value["shards"][0]
    for what in ("sentences", "tokens"):
        less = entry[what] - counts[what]
        value["splits"]["train"][what] -= less
        value["counts"][what] -= less
    first = {"first_sentence_id": 0, "last_sentence_id": 1, "sentence_offset": 0}
    entry |= counts | first | {"document_offset": 0}
    entry |= {"bytes": (folder / entry["file"]).stat().st_size}
    entry |= {"sha256": sha256(folder / entry["file"])}
    path.write_text(json.dumps(value))


def test_shards_of_the_right_kind_signed_again_are_taken(case: Path) -> None:
    """What the cases above differ from."""
    from tests.pipeline.command_line import elmo

    write(case / FILE, Content().batch())
    sign(case / "task", {"sentences": 2, "tokens": 3, "types": 2})
    for command in ("vocab", "features"):
        code, _, error = elmo(*COMMANDS[command], cwd=case)
        assert code == 0, error


WORDS: dict[str, tuple[str, bytes]] = {
    "no beginning": ("words.txt", b"</S>\n<UNK>\nthe\n"),
    "no unknown": ("words.txt", b"<S>\n</S>\nthe\n"),
    "a word twice": ("words.txt", b"<S>\n</S>\n<UNK>\nthe\nthe\n"),
    "a word too many": ("words.txt", b"<S>\n</S>\n<UNK>\na\nb\nc\nd\ne\nf\ng\n"),
    "a count that is none": ("counts.txt", b"many\n" * 9),
    "a count below 0": ("counts.txt", b"-1\n" * 9),
    "a fraction": ("counts.txt", b"1.5\n" * 9),
    "a count too few": ("counts.txt", b"1\n" * 8),
}


@pytest.mark.parametrize("what", WORDS)
def test_words_that_are_none(case: Path, what: str) -> None:
    name, data = WORDS[what]
    (case / "vocab" / name).write_bytes(data)
    refused(*COMMANDS["pretrain"], cwd=case, names="vocab/")
    assert not (case / "work").exists()


@pytest.mark.parametrize("name", ["words.txt", "counts.txt", "characters.json"])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_vocabulary(case: Path, name: str, what: str) -> None:
    if name == "counts.txt" and what in ("absent", "dangling"):
        pytest.skip("counts may be absent")
    DAMAGE[what](case / "vocab" / name)
    refused(*COMMANDS["pretrain"], cwd=case, names=f"vocab/{name}")
    assert not (case / "work").exists()


def test_a_filter_wider_than_a_token(case: Path) -> None:
    wide = ("--set", "pretrain.network.filters=[[999,4]]")
    refused(*COMMANDS["pretrain"], *wide, cwd=case, names="pretrain.network.filters: a filter is")
    assert not (case / "work").exists()
