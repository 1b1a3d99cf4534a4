"""tokenize: nothing lost, nothing moved, every byte accounted for, every bad file named."""

import bz2
import csv
import gzip
import json
import lzma
import random
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from elmo.data.manifest import DroppedText
from elmo.data.shards import Shards
from elmo.data.tokenizer import Tokenization, installed_tokenization
from elmo.errors import ElmoError
from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings
from pipeline.settings.params import load as load_params
from pipeline.stages import corpus, tokenize
from pipeline.text import format_parquet, shard_builder, utf8_lines
from pipeline.text.copies import Passages, PiecePassages, find_leaks
from pipeline.text.input_files import find_inputs
from pipeline.text.near_duplicates import SLOTS, find_near_duplicates
from pipeline.text.pieces import Piece
from pipeline.text.text_blocks import check_texts
from tests.files import contents
from tests.pipeline.stages import test_corpus

pytestmark = pytest.mark.usefixtures("in_process")

CLUSTER = Cluster(workers=0, cpus=1, gpu=False, actors=2)
LINES = [
    "The cat sat on the mat .",
    "",
    "  naïve café\u00a0— 고양이가 앉았다 🙂 ",
    "   \t ",
    "Mr. Smith's cat isn't here. It left at 3.14, at last! Did it?",
    "吾輩は猫である。名前はまだ無い。",
    "x" * 70,
    "the end",
]


@pytest.fixture
def cut_pieces(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """The pieces that are tokenized, in order."""
    pieces: list[Piece] = []

    def run_tasks(function, items, **_):  # type: ignore[no-untyped-def]
        for item in items:
            pieces.extend([item] * (function.args[0] is shard_builder.tokenize_piece))
            yield function(item)

    monkeypatch.setattr(workers, "map_tasks", run_tasks)
    return pieces


def params(**changes: object) -> TokenizeSettings:
    plain = TokenizeSettings("whitespace", "line", "line", 0.0, 0.0, 0, 0, 0, 1.0, (), 1024)
    return replace(plain, **changes)  # type: ignore[arg-type]


def make(
    out: Path,
    *paths: Path | str,
    column: str = "text",
    keep: tuple[str, ...] = (),
    cluster: Cluster = CLUSTER,
    **changes: object,
) -> Shards:
    tokenize.tokenize(
        find_inputs([str(path) for path in paths]),
        Location(out),
        params(**changes),
        column=column,
        keep=keep,
        work=Location(out.parent / "runs"),
        cluster=cluster,
    )
    return open_checked(out)


def open_checked(out: Path) -> Shards:
    """Open shards in which every byte of the text is, or counted as left out."""
    shards = Shards(out)
    counts = shards.manifest.counts
    dropped_bytes = sum(part.bytes for part in counts.dropped.values())
    assert counts.token_bytes + dropped_bytes == counts.bytes
    return shards


def make_corpus(folder: Path, general: Sequence[Path], domain: Sequence[Path]) -> Location:
    """Run the corpus stage on files of both texts; return its output."""
    files = {"general": tuple(map(str, general)), "domain": tuple(map(str, domain))}
    settings = test_corpus.params(domain_package="", **files)
    out = Location(folder / "corpus")
    corpus.run(out, settings, work=Location(folder / "work"))
    return out


def run(texts: Location, out: Path, text: str, **changes: object) -> dict[str, float]:
    """Run the stage on one text of a corpus; return its figures."""
    places = {"work": Location(out.parent / "runs"), "cluster": CLUSTER}
    root = Path(__file__).resolve().parents[3]
    settings = replace(load_params(root / "params.yaml"), tokenize=params(**changes))
    return tokenize.run(texts, Location(out), settings, text=text, **places)


def rows(shards: Shards) -> dict[int, list[str]]:
    """Every sentence by its place in the corpus."""
    found = {}
    for entry in shards.entries():
        shard = shards.open(entry)
        for row, place in enumerate(shard.sentence_ids.tolist()):
            assert place not in found
            found[place] = shard.tokens(row)
    return found


def documents(shards: Shards) -> dict[int, tuple[int, str]]:
    """The document and split of every sentence."""
    found = {}
    for entry in shards.entries():
        shard = shards.open(entry)
        pairs = zip(shard.sentence_ids.tolist(), shard.document_ids.tolist(), strict=True)
        found.update({place: (document, entry.split) for place, document in pairs})
    return dict(sorted(found.items()))


def in_order(shards: Shards) -> list[list[str]]:
    found = rows(shards)
    assert sorted(found) == list(range(len(found)))
    return [found[i] for i in range(len(found))]


def text_file(folder: Path, lines: list[str], name: str = "text.txt") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    return path


def long_text(folder: Path, lines: int = 2000) -> tuple[Path, list[str]]:
    """Lines of random words, about 60 kB in 60 pieces, with blank ones among them."""
    pick = random.Random(7)
    words = ["the", "of", "naïve", "고양이", "can't", "3.14", "(see", "below).", "🙂", "a.b,c"]
    words += ["a\u3000b", "x\x1cy", "\u200bq", "\xa0", "p\x85"]
    text = [" ".join(pick.choices(words, k=pick.randrange(0, 9))) for _ in range(lines)]
    return text_file(folder, text), text


@pytest.mark.parametrize("tokenizer", ["whitespace", "unicode"])
@pytest.mark.parametrize("sentences", ["line", "split"])
@pytest.mark.parametrize("documents_", ["file", "line", "blank"])
def test_every_byte_is_in_a_shard_or_counted_with_its_reason(
    tmp_path: Path, tokenizer: str, sentences: str, documents_: str
) -> None:
    text = "\ufeff" + "\r\n".join([*LINES, "\x01\x1c odd\u2028ones\x85 .", "\u00a0"])
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8", newline="")
    shards = make(
        tmp_path / "out", path, tokenizer=tokenizer, sentences=sentences, documents=documents_
    )
    assert shards.manifest.counts.bytes == path.stat().st_size
    dropped = shards.manifest.counts.dropped
    assert dropped["mark"].bytes == 3
    assert dropped["newline"].bytes == text.count("\n")
    assert dropped["blank"] == DroppedText(3, 1 + 6 + 2)
    assert dropped["tokenizer"].bytes == 0
    tokens = "".join(token for row in in_order(shards) for token in row)
    assert set(tokens) >= set("".join("".join(LINES).split()))
    assert len(tokens.encode()) == shards.manifest.counts.token_bytes


def test_splitting_each_distinct_stretch_once_equals_splitting_every_line(tmp_path: Path) -> None:
    from elmo.data.tokenizer import load_tokenizer

    path, text = long_text(tmp_path)
    for name in ("whitespace", "unicode"):
        shards = make(tmp_path / name, path, tokenizer=name)
        assert in_order(shards) == load_tokenizer(name).split(text)


def test_sentences_are_split_and_all_of_a_line_is_in_them(tmp_path: Path) -> None:
    shards = make(tmp_path / "out", text_file(tmp_path, LINES), sentences="split")
    found = [" ".join(row) for row in in_order(shards)]
    assert found[2:5] == ["Mr. Smith's cat isn't here.", "It left at 3.14, at last!", "Did it?"]
    assert found[5:7] == ["吾輩は猫である。", "名前はまだ無い。"]
    assert "".join(found).replace(" ", "") == "".join("".join(LINES).split())


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst", ".xz"])
def test_a_compressed_file_is_the_text_in_it(tmp_path: Path, ending: str) -> None:
    path, text = long_text(tmp_path)
    packed = tmp_path / f"text.txt{ending}"
    data = path.read_bytes()
    if ending == ".xz":
        packed.write_bytes(lzma.compress(data))
    elif ending == ".bz2":
        packed.write_bytes(b"".join(map(bz2.compress, _halves(data))))
    elif ending == ".gz":
        packed.write_bytes(gzip.compress(data[:9000]) + gzip.compress(data[9000:]))
    else:
        packed.write_bytes(b"".join(pa.compress(d, "zstd", asbytes=True) for d in _halves(data)))
    shards = make(tmp_path / "out", packed)
    assert in_order(shards) == [line.split() for line in text]
    assert shards.manifest.counts.bytes == len(data)
    assert shards.manifest.inputs[0].bytes == packed.stat().st_size
    assert len(shards.entries()) > 10  # a stream is cut in shards too


def _halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 2], data[len(data) // 2 :]


def test_json_lines_give_their_field_and_the_rest_is_counted(tmp_path: Path) -> None:
    texts = [*LINES, None, "two\nlines", 'quoted "x" \\ \ud7ff']
    records = [json.dumps({"id": i, "review": text}) for i, text in enumerate(texts)]
    path = text_file(tmp_path, records, "data.jsonl")
    shards = make(tmp_path / "out", path, column="review")
    flat = [line for text in texts for line in (text or "").split("\n")]
    assert in_order(shards) == [line.split() for line in flat]
    assert shards.manifest.counts.bytes == path.stat().st_size
    found = documents(shards)
    both = [place for place, line in enumerate(flat) if line in ("two", "lines")]
    assert (
        found[both[0]][0] == found[both[1]][0] != found[both[0] - 1][0]
    )  # one record, one document


def test_parquet_gives_its_column_whatever_its_row_groups(tmp_path: Path) -> None:
    _, text = long_text(tmp_path)
    texts = [*text, None, "two\nlines"]
    table = pa.table({"n": list(range(len(texts))), "review": pa.array(texts, pa.large_string())})
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, row_group_size=100, compression="zstd")
    shards = make(tmp_path / "out", path, column="review")
    flat = [line for line in text] + ["", "two", "lines"]
    assert in_order(shards) == [line.split() for line in flat]
    assert len(shards.entries()) > 5
    whole = sum(len(t.encode()) for t in texts if t)
    assert shards.manifest.counts.bytes == whole


@pytest.mark.parametrize("name", ["d.jsonl", "d.parquet"])
def test_a_field_within_another_is_named_by_both(tmp_path: Path, name: str) -> None:
    records = [{"id": k, "data": {"text": f"mill {k}", "n": k}} for k in range(9)]
    if name == "d.jsonl":
        text_file(tmp_path, [json.dumps(record) for record in records], name)
    else:
        pq.write_table(pa.Table.from_pylist(records), tmp_path / name)
    shards = make(tmp_path / "out", tmp_path / name, column="data.text")
    assert in_order(shards) == [["mill", str(k)] for k in range(9)]
    for column in ("data.body", "data", "data.text.x", "other.text"):
        with pytest.raises(ElmoError, match=rf"{re.escape(name)}:?.* {re.escape(repr(column))}"):
            make(tmp_path / "none", tmp_path / name, column=column)


def test_a_dictionary_column_is_text_too(tmp_path: Path) -> None:
    column = pa.array(["a b", "c", "a b"]).dictionary_encode()
    pq.write_table(pa.table({"text": column}), tmp_path / "data.parquet")
    shards = make(tmp_path / "out", tmp_path / "data.parquet")
    assert in_order(shards) == [["a", "b"], ["c"], ["a", "b"]]


def test_any_fsspec_url_is_an_input(tmp_path: Path) -> None:
    import fsspec

    with fsspec.open("memory://corpus/a.txt.gz", "wb") as file:
        file.write(gzip.compress(b"a b\nc\n"))
    shards = make(tmp_path / "out", "memory://corpus/*.gz")
    assert in_order(shards) == [["a", "b"], ["c"]]


def test_files_follow_each_other_by_name_and_each_of_a_few_has_its_shard(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "sub/c.txt", ".hidden"):
        (folder / name).write_text(f"in {name}\n")
    shards = make(tmp_path / "out", folder, documents="file")
    assert in_order(shards) == [["in", "a.txt"], ["in", "b.txt"], ["in", "sub/c.txt"]]
    assert [i.name for i in shards.manifest.inputs] == ["a.txt", "b.txt", "sub/c.txt"]
    assert [found[0] for found in documents(shards).values()] == [0, 1, 2]
    assert len(shards.entries()) == 3


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_large_corpus_has_larger_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Their number, which the manifests grow with, is bounded; of a small one nothing changes."""
    path, lines = long_text(tmp_path)
    if ending:
        packed = tmp_path / "text.txt.gz"
        packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path = packed
    monkeypatch.setattr("pipeline.text.pieces.MAX_PIECES", 1 << 13)
    small = make(tmp_path / "small", path)
    monkeypatch.setattr("pipeline.text.pieces.MAX_PIECES", 8)
    large = make(tmp_path / "large", path)
    assert len(small.entries()) > 20 and len(large.entries()) <= 9
    assert in_order(large) == in_order(small) == [line.split() for line in lines]


def test_too_many_files_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(20):
        text_file(tmp_path, ["a line"], f"{k}.txt")
    monkeypatch.setattr("elmo.io.records.JSON_LIMIT", 8_000)
    monkeypatch.setattr("pipeline.text.input_files.open_input", None)
    with pytest.raises(ElmoError, match="20 files are too many for a manifest .* join them into"):
        find_inputs([str(tmp_path)])


def test_documents_between_blank_lines_are_never_divided(tmp_path: Path) -> None:
    """Blank lines before the first one belong to it."""
    pick = random.Random(3)
    text, expected = ["", " "], [0, 0]
    for document in range(150):
        size = 400 if document == 70 else pick.randrange(1, 12)
        block = [f"document {document} line {i}" for i in range(size)]
        gap = [pick.choice(["", "  ", "\t"]) for _ in range(pick.randrange(1, 4))]
        text += block + gap
        expected += [document] * (len(block) + len(gap))
    path = text_file(tmp_path, text)
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for number, source in enumerate((path, packed)):
        out = tmp_path / f"out{number}"
        shards = make(out, source, documents="blank", heldout=0.3)
        found = documents(shards)
        assert [document for document, _ in found.values()] == expected
        splits: dict[int, set[str]] = {}
        for document, split in found.values():
            splits.setdefault(document, set()).add(split)
        assert all(len(split) == 1 for split in splits.values())
        assert {split for (split,) in splits.values()} == {"train", "heldout"}
        assert shards.manifest.counts.documents == 150
    records = text_file(tmp_path, [json.dumps({"text": line}) for line in text], "text.jsonl")
    with pytest.raises(ElmoError, match="tokenize.documents: blank is for plain text, not for j"):
        make(tmp_path / "out", records, documents="blank")


def test_bytes_that_are_in_no_token_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a tokenizer that cuts each stretch between spaces alone too."""
    tokenizer = shard_builder.load_recorded_tokenizer(installed_tokenization("unicode"))
    losing = replace(tokenizer, split=lambda texts: [[text.replace("~", "")] for text in texts])
    monkeypatch.setattr(shard_builder, "load_recorded_tokenizer", lambda _: losing)
    path = text_file(tmp_path, ["one ~two~ one", "", "~two~ 3~ ~two~"])
    counts = make(tmp_path / "out", path, tokenizer="unicode").manifest.counts
    assert counts.dropped["tokenizer"].bytes == 7


def test_documents_keep_their_split_when_the_corpus_around_them_changes(tmp_path: Path) -> None:
    lines = [f"sentence number {i}" for i in range(400)]
    one = make(tmp_path / "one", text_file(tmp_path, lines), heldout=0.2)
    sentences = rows(one)
    held = {
        " ".join(sentences[k]) for k, (_, split) in documents(one).items() if split == "heldout"
    }
    assert [k for k in range(31) if lines[k] in held] == [9, 11, 13, 21, 22, 30]  # always
    moved = [f"new line {i}" for i in range(77)] + lines[::-1]
    two = make(tmp_path / "two", text_file(tmp_path, moved), heldout=0.2, shard_bytes=4096)
    for place, (_, split) in documents(two).items():
        if moved[place] in lines:
            assert (split == "heldout") == (moved[place] in held)


def test_the_same_document_twice_is_on_one_side(tmp_path: Path) -> None:
    lines = [f"sentence number {i}" for i in range(300)]
    shards = make(tmp_path / "out", text_file(tmp_path, lines + lines), heldout=0.3)
    splits = [split for _, split in documents(shards).values()]
    assert splits[:300] == splits[300:] and set(splits) == {"train", "heldout"}


def edit_text(text: str, share: float, pick: random.Random) -> str:
    """The text with a share of its words replaced."""
    words = text.split(" ")
    for k in pick.sample(range(len(words)), round(share * len(words))):
        words[k] = f"v{pick.randrange(10**6)}"
    return " ".join(words)


@pytest.mark.parametrize(("documents_", "japanese"), [("blank", False), ("line", True)])
@pytest.mark.parametrize(("threshold", "share"), [(0.8, 0.01), (0.4, 0.1)])
def test_a_document_that_nearly_repeats_one_before_it_is_left_out(
    tmp_path: Path, documents_: str, japanese: bool, threshold: float, share: float
) -> None:
    """A few words changed: a near duplicate; one in three: another document."""
    pick = random.Random(6)
    texts = [" ".join(f"w{pick.randrange(10**5)}" for _ in range(100)) for _ in range(60)]
    near = [edit_text(text, share, pick) for text in texts[::2]]
    other = [edit_text(text, 0.34, pick) for text in texts[1::2]]
    if japanese:  # no spaces between words, three bytes a character
        kana = str.maketrans(
            "0123456789wv",
            "\u3042\u3044\u3046\u3048\u304a\u304b\u304d\u304f\u3051\u3053\u3055\u3057",
        )
        texts, near, other = (
            [one.translate(kana).replace(" ", "") for one in part] for part in (texts, near, other)
        )
    kept = [*texts, *other]
    paths = [
        text_file(tmp_path, [line for text in part for line in (text, "")], name=name)
        for name, part in (("a.txt", texts), ("b.txt", [*near, *other]))
    ]
    for size in (4096, 1 << 20):
        how = {"documents": documents_, "shard_bytes": size}
        for similarity, expected in ((0.0, [*texts, *near, *other]), (threshold, kept)):
            shards = make(tmp_path / str(similarity), *paths, near_duplicates=similarity, **how)
            assert [" ".join(row) for row in in_order(shards) if row] == expected


@pytest.mark.parametrize("documents_", ["auto", "file"])
def test_columns_of_a_record_stay_beside_its_sentences(tmp_path: Path, documents_: str) -> None:
    """Also beside those of one with several lines; blank and copied ones shift nothing."""
    texts = [f"record {k} . It has\nsome words {k} ." for k in range(400)]
    texts[5], texts[8], texts[9] = "", "a long text " * 40, "a long text " * 40
    rows_ = [{"id": f"r{k}", "stars": k, "text": text} for k, text in enumerate(texts)]
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows_[:200])
        file.write(json.dumps({"text": "none"}) + "\n")
    pq.write_table(pa.Table.from_pylist(rows_[200:300]), tmp_path / "b.parquet", row_group_size=7)
    with (tmp_path / "c.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["stars", "text", "id"])
        table.writeheader()
        table.writerows(rows_[300:])
    text_file(tmp_path, ["no record"], name="d.txt")
    paths = [tmp_path / name for name in ("a.jsonl", "b.parquet", "c.csv", "d.txt")]
    how = {"documents": documents_, "sentences": "split", "heldout": 0.3}
    shards = make(tmp_path / "out", *paths, keep=("id", "stars"), **how)
    found = {}
    for entry in shards.entries():
        shard = shards.open(entry)
        for row, place in enumerate(shard.sentence_ids.tolist()):
            kept = json.loads(shard.records[row].as_py() or "{}")
            found[place] = " ".join(shard.tokens(row)), kept
    for sentence, kept in found.values():
        number = re.search(r"\d+", sentence)
        if number is not None:
            k = int(number[0])
            assert kept == {"id": f"r{k}", "stars": str(k) if k >= 300 else k}
    others = [
        (sentence, kept) for sentence, kept in found.values() if not re.search(r"\d", sentence)
    ]
    assert ("no record", {}) in others
    assert ("none", {"id": None, "stars": None}) in others
    assert sum(kept == {"id": "r8", "stars": 8} for _, kept in others) == 1
    assert not any(kept == {"id": "r9", "stars": 9} for _, kept in others)
    plain = make(tmp_path / "plain", *paths, **how)
    assert rows(plain) == rows(shards)
    with pytest.raises(ElmoError, match=r"a\.jsonl: no field 'key' .*; set corpus\.keep"):
        check_texts(find_inputs([str(paths[0])]), "text", keep=("key",))
    with pytest.raises(ElmoError, match=r"b\.parquet: no column 'key'"):
        check_texts(find_inputs([str(paths[1])]), "text", keep=("key",))
    with pytest.raises(ElmoError, match=r"c\.csv:1: .*'key'"):
        check_texts(find_inputs([str(paths[2])]), "text", keep=("key",))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_texts_of_several_columns_are_joined(tmp_path: Path, ending: str) -> None:
    """Each is on lines of its own; an empty one adds none; kept columns may lie within others."""
    titles = [f"Title {k}" if k % 3 else "" for k in range(50)]
    bodies = [f"body {k}\nsecond line" if k % 4 else "" for k in range(50)]
    records = [
        {"body": body, "meta": {"id": f"r{k}", "title": title}, "a + b": f"both {k}"}
        for k, (title, body) in enumerate(zip(titles, bodies, strict=True))
    ]
    path, keep = tmp_path / f"a.{ending}", ("meta.id",)
    column = "meta.title + body + body"  # a column that is named twice is joined once
    if ending == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=7)
    else:
        column, keep = "title + body + 1", ("id",)  # by its number
        with path.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["body", "id", "title", "a + b"])
            table.writerows((r["body"], *r["meta"].values(), r["a + b"]) for r in records)
    shards = make(tmp_path / "out", path, column=column, keep=keep, documents="auto")
    found = [" ".join(row) for row in in_order(shards)]
    parts = zip(titles, bodies, strict=True)
    assert found == [line for pair in parts for line in "\n".join(filter(None, pair)).split("\n")]
    assert {one for one, _ in documents(shards).values()} == set(range(50))
    texts = sum(map(len, [*titles, *bodies]))
    assert shards.manifest.counts.bytes == (texts if ending == "parquet" else path.stat().st_size)
    for entry in shards.entries():
        shard = shards.open(entry)
        kept = [json.loads(record) for record in shard.records.to_pylist()]
        assert kept == [{keep[0]: f"r{number}"} for number in shard.document_ids.tolist()]
    shards = make(tmp_path / "one", path, column="a + b")
    assert [" ".join(row) for row in in_order(shards)] == [f"both {k}" for k in range(50)]
    with pytest.raises(ElmoError, match=r"a\.\w+\b.*'?absent"):
        check_texts(find_inputs([str(path)]), "body + absent")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_lines_repeated_across_documents_are_left_out(tmp_path: Path, name: str) -> None:
    """Often in one document is no repetition across several."""
    bodies = [[f"body {k} {line}" for line in range(3)] for k in range(40)]
    texts = [["Confidential", *body, "Yours", "Ann"] for body in bodies]
    texts[0] += ["often here"] * 50
    for text in texts[:9]:
        text.append("nine times")
    joined = ["\n".join(text) for text in texts]
    if name == "a.txt":
        path = text_file(tmp_path, ["\n\n".join(joined)], name=name)
    else:
        path = text_file(tmp_path, [json.dumps({"text": text}) for text in joined], name=name)
    expected = [line for text in texts for line in text]
    for size in (1024, 1 << 20):
        for least, gone in ((0, []), (10, ["Confidential", "Yours", "Ann"])):
            how = {"documents": "auto", "shard_bytes": size, "repeated_lines": least}
            shards = make(tmp_path / f"{size}{least}", path, **how)
            kept = [line for line in expected if line not in gone]
            assert [" ".join(row) for row in in_order(shards) if row] == kept
            dropped = shards.manifest.counts.dropped.get("repeated_line", DroppedText(0, 0))
            assert dropped == DroppedText(40 * len(gone), 40 * sum(map(len, gone)))


FILTERED = {
    "short": "Too short.",
    "long": "A long text goes on and on. " * 20,
    "symbols": "1 2 3 4 5 6 7 8 9 10 | 11 | 12 | 13 = a sum of 91; 14.5 % of 600 %",
    "script": "Только по-русски, это не латиница, but Latin is here.",
}
FILTERS = {"min_bytes": 40, "max_bytes": 300, "max_symbols": 0.5, "scripts": ("latin", "thai")}


@pytest.mark.parametrize("documents_", ["blank", "line"])
@pytest.mark.parametrize("reason", [None, *FILTERED])
def test_a_filter_leaves_out_the_documents_over_its_limit(
    tmp_path: Path, reason: str | None, documents_: str
) -> None:
    """Each filter alone, and all at once, whatever the blocks; marks of Thai are no symbols."""
    thai = "ที่นี่มีน้ำ" * 3
    plain = [f"Document {k} is as long as others.\nIt has two lines." for k in range(40)]
    plain = [text.replace("\n", " " if documents_ == "line" else "\n") for text in plain]
    texts = [*plain[:20], *FILTERED.values(), *plain[20:], thai]
    path = text_file(tmp_path, ["\n\n".join(texts)])
    names = dict(zip(FILTERED, FILTERS, strict=True))
    reasons = [*FILTERED] if reason is None else [reason]
    how = {names[one]: FILTERS[names[one]] for one in reasons}
    expected = [text for text in texts if text not in [FILTERED[one] for one in reasons]]
    for size in (1024, 1 << 20):
        shards = make(tmp_path / f"out{size}", path, documents=documents_, shard_bytes=size, **how)
        lines = [" ".join(row) for row in in_order(shards) if row]
        assert lines == [" ".join(line.split()) for line in "\n".join(expected).split("\n")]
        dropped = shards.manifest.counts.dropped
        assert {one for one in FILTERED if one in dropped} == set(reasons)
        assert all(dropped[one].bytes == len(FILTERED[one].encode()) for one in reasons)


def test_what_a_filter_leaves_out_is_no_original_of_a_copy(tmp_path: Path) -> None:
    """A near copy of a document that is too long is kept, since nothing else says what it does."""
    pick = random.Random(3)
    text = " ".join(f"w{pick.randrange(10**5)}" for _ in range(100))
    long, near = f"{text} and some more words", edit_text(text, 0.01, pick)
    path = text_file(tmp_path, [long, near])
    for limit, kept in ((0, [long]), (len(near), [near])):
        shards = make(tmp_path / str(limit), path, near_duplicates=0.8, max_bytes=limit)
        assert [" ".join(row) for row in in_order(shards) if row] == kept


def test_filters_that_leave_nothing_are_named(tmp_path: Path) -> None:
    path = text_file(tmp_path, ["short", "", "A long document."])
    with pytest.raises(
        ElmoError, match=r"no tokens, all is left out as .*min_bytes, as .*max_bytes$"
    ):
        make(tmp_path / "out", path, documents="blank", min_bytes=9, max_bytes=8)


@pytest.mark.parametrize("least", [0, 3000])
def test_a_file_that_is_one_document_is_as_long_as_it_is(tmp_path: Path, least: int) -> None:
    """Whatever pieces it is divided into."""
    paths = [
        text_file(tmp_path, [f"line {k} of {name}" for k in range(count)], name=f"{name}.txt")
        for name, count in (("short", 50), ("long", 500))
    ]
    how = {"documents": "file", "min_bytes": least, "shard_bytes": 1024}
    shards = make(tmp_path / "out", *paths, **how)
    kept = [" ".join(row) for row in in_order(shards)]
    expected = [f"line {k} of long" for k in range(500)]
    assert kept == [*(f"line {k} of short" for k in range(50) if not least), *expected]


@pytest.mark.parametrize("similarity", [0.0, 0.8])
def test_nothing_is_learned_from_that_the_other_text_holds_out(
    tmp_path: Path, similarity: float
) -> None:
    """The general text loses it, on either side; of the domain text nothing is left out."""
    pick = random.Random(8)
    texts = [" ".join(f"w{pick.randrange(10**5)}" for _ in range(100)) for _ in range(400)]
    general, shared, domain = texts[:100], texts[100:300], texts[300:]
    alike = [edit_text(text, 0.01, pick) for text in shared]
    named = {
        # Each shared text is part of another document there, so chance chooses its side anew.
        "general": [f"{one}\n{other}" for one, other in zip(general * 2, shared, strict=True)],
        "alike": [f"{text} once more" for text in alike],
        "domain": [*domain, *shared],
    }
    for name, documents_ in named.items():
        text_file(tmp_path, ["\n\n".join(documents_)], name=f"{name}.txt")
    files = {name: tmp_path / f"{name}.txt" for name in named}
    both_texts = make_corpus(tmp_path, [files["general"], files["alike"]], [files["domain"]])
    found = {}
    for size in (4096, 1 << 20):
        sides: dict[str, dict[str, set[str]]] = {}
        for text in ("general", "domain"):
            out, how = tmp_path / f"{text}{size}", {"documents": "blank", "shard_bytes": size}
            run(both_texts, out, text, heldout=0.4, near_duplicates=similarity, **how)
            shards = open_checked(out)
            lines, side = rows(shards), documents(shards)
            sides[text] = {
                split: {" ".join(lines[k]) for k in lines if side[k][1] == split}
                for split in ("train", "heldout")
            }
        found[size] = sides
    assert found[4096] == found[1 << 20]
    ours, theirs = found[4096]["general"], found[4096]["domain"]
    assert {*domain, *shared} <= theirs["train"] | theirs["heldout"]
    nearly = {f"{text} once more": one for one, text in zip(shared, alike, strict=True)}
    for side, other in (("train", "heldout"), ("heldout", "train")):
        assert not ours[side] & theirs[other] - {""}
        kept = {nearly[text] for text in ours[side] if text in nearly}
        # What is on the same side in both texts stays.
        assert len(ours[side] & theirs[side] - {""}) > 20
        assert len(kept & theirs[side]) > 20
        assert bool(similarity) != bool(kept & theirs[other])


@pytest.mark.parametrize("references", [0, 40])
@pytest.mark.parametrize("has_sides", [False, True])
def test_a_near_duplicate_repeats_an_earlier_document(references: int, has_sides: bool) -> None:
    """Of twenty families, whose members share about nine slots in ten."""
    random, most = np.random.default_rng(0), 1 << 16
    family, sides = random.integers(20, size=120), random.random(120) < 0.5
    sketches = random.integers(most, size=(20, SLOTS), dtype=np.uint16)[family]
    sketches[random.random(sketches.shape) < 0.05] = 0
    options: dict[str, Any] = {"reference_count": references, "sides": sides if has_sides else None}
    found = find_near_duplicates(sketches, similarity=0.75, **options)
    for document, original in enumerate(found.tolist(), references):
        alike = family[: references or document] == family[document]
        if has_sides:
            alike &= sides[: references or document] == sides[document]
        assert (original in np.flatnonzero(alike)) if alike.any() else original == -1


def test_documents_that_share_little_hide_no_near_duplicate() -> None:
    """Each of them has a part of the slots that two equal ones share."""
    sketches = np.random.default_rng(0).integers(1 << 16, size=(12, SLOTS), dtype=np.uint16)
    for number in range(11):
        part = slice(12 * number, 12 * number + 12)
        sketches[number, part] = sketches[11, part]
    found = find_near_duplicates(np.append(sketches, sketches[11:], 0), similarity=1.0)
    assert found.tolist() == [-1] * 12 + [11]


def test_what_the_other_text_leaves_out_is_no_leak() -> None:
    def piece(*heldout: bool) -> PiecePassages:
        lines = np.array([[k, k + 1] for k in range(0, 2 * len(heldout), 2)])
        exact = Passages(np.full(len(heldout), 7, np.uint64), lines, np.array(heldout))
        nothing = np.zeros(0, np.uint64)
        return PiecePassages(
            exact, exact.select(np.zeros(len(heldout), bool)), nothing, nothing, {}
        )

    for other, leaks in ((piece(False, True), []), (piece(True, False), [[0, 1]])):
        assert find_leaks([piece(False)], [other])[0].tolist() == leaks


@pytest.mark.parametrize("documents_", ["blank", "line", "file", "auto"])
@pytest.mark.parametrize("sentences", ["line", "split"])
def test_what_came_before_is_left_out_and_counted(
    tmp_path: Path, documents_: str, sentences: str
) -> None:
    """Long lines and documents of short lines; what is short stays as often as it is there."""
    pick = random.Random(5)
    long = [" ".join(f"w{pick.randrange(10**6)}" for _ in range(60)) for _ in range(20)]
    wrapped = ["\n".join(f"w{pick.randrange(10**6)} of it" for _ in range(40)) for _ in range(9)]
    short = ["Yes, he said.", "A heading"]
    first = [*long[:10], *wrapped[:5], *short]
    second = [long[12], *short, wrapped[2], long[3], wrapped[6], long[12]]
    for name, texts in (("a.txt", first), ("b.txt", second), ("c.txt", [*long, wrapped[6]])):
        (tmp_path / name).write_text("\n\n".join(texts) + "\n \n", newline="\r\n")
    paths = sorted(tmp_path.glob("*.txt"))
    found = {}
    for size in (1024, 1 << 20):
        how = {"documents": documents_, "sentences": sentences, "shard_bytes": size}
        shards = make(tmp_path / f"{documents_}{size}", *paths, **how)
        lines = [" ".join(row) for row in in_order(shards) if row]
        found[size] = lines
        copied = [long[3], long[12], *long[:10], long[12]]
        blocks = [wrapped[2], wrapped[6]] * (documents_ in ("blank", "auto"))
        dropped = shards.manifest.counts.dropped["copy"]
        ends = len(copied) + sum(text.count("\n") + 1 for text in blocks)  # a \\r each
        least = ends + sum(len(text.replace("\n", "")) for text in [*copied, *blocks])
        assert least <= dropped.bytes <= least + 2 * len([*copied, *blocks])  # blank lines
        assert all(lines.count(line) == 1 for line in long)
        assert all(lines.count(line) == 2 for line in short)
        if blocks:
            texts = [*wrapped[:5], wrapped[6]]
            assert all(lines.count(line) == 1 for text in texts for line in text.split("\n"))
    assert found[1024] == found[1 << 20]


def test_from_256_bytes_on_a_line_that_is_there_before_is_a_copy(tmp_path: Path) -> None:
    lines = ["x" * size for size in (255, 256, 255, 256)]
    assert in_order(make(tmp_path / "out", text_file(tmp_path, lines))) == [[x] for x in lines[:3]]


def test_the_dictionary_of_a_shard_holds_exactly_its_own_tokens(tmp_path: Path) -> None:
    path, _ = long_text(tmp_path)
    shards = make(tmp_path / "out", path, heldout=0.3)
    for entry in shards.entries():
        shard = shards.open(entry)
        assert shard.types == list(
            dict.fromkeys(t for i in range(len(shard)) for t in shard.tokens(i))
        )
        assert np.all(np.diff(shard.sentence_ids) > 0)


@pytest.mark.ray
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    path, _ = long_text(tmp_path)
    how = {"tokenizer": "unicode", "sentences": "split", "heldout": 0.2, "shard_bytes": 8192}
    with workers.session():  # one Ray for both
        one, three = (
            make(tmp_path / f"{n}/out", path, cluster=replace(CLUSTER, actors=n), **how)
            for n in (1, 3)
        )
    assert contents(one.location.local) == contents(three.location.local)
    assert len(one.entries()) > 6


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path, ending: str) -> None:
    _, text = long_text(tmp_path)
    peaks = []
    for times in (50, 500):  # 2.5 and 25 MB, of which 8 are hashes
        data = ("\n".join(text) + "\n").encode() * times
        path = tmp_path / f"{times}.txt{ending}"
        path.write_bytes(gzip.compress(data, 1) if ending else data)
        ended = run_stage(path, tmp_path / f"out{times}", shard_bytes=1 << 20)
        assert ended.returncode == 0, ended.stderr
        peaks.append(int(ended.stderr.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 32, f"{peaks} MB"


def test_a_manifest_says_nothing_of_this_machine(tmp_path: Path) -> None:
    path, _ = long_text(tmp_path)
    make(tmp_path / "out", path)
    text = (tmp_path / "out" / "manifest.json").read_text()
    assert str(tmp_path) not in text and f"{date.today():%Y-%m}" not in text


def test_the_quality_report_counts_what_is_odd(tmp_path: Path) -> None:
    lines = ["a fine line of text"] * 3 + [f"line {c} more" for c in "abcdefg"]
    lines += ["совсем другой язык", "| 1 | 2 | 3 |", "----- .", "", "x" * 70]
    shards = make(tmp_path / "out", text_file(tmp_path, lines))
    report = shards.manifest.quality
    assert in_order(shards)[-1] == ["x" * 70]  # over the limit of characters, and whole
    assert report["duplicate_share"] == pytest.approx(2 / 14, abs=1e-6)
    assert report["not_text_sentences"] == 2
    assert report["scripts"] == {"latin": 11, "cyrillic": 1}


BAD = {
    "UTF-16 without a mark": ("ab\nc".encode("utf-16-le"), r"t\.txt:1: .* zero byte, .* UTF-16"),
    "binary": (b"fine\nsome \x00 more\n", r"t\.txt:2: .* zero byte"),
    "invalid UTF-8": (b"fine\nna\xefve\n", r"t\.txt:2: byte 3 of the line \(0xef\) is not UTF-8"),
    "cut character": ("ok\n고".encode()[:-1], r"t\.txt:2: byte 1 of the line \(0xea\)"),
    "empty": (b"", r"t\.txt: is empty"),
    "blank": (b"\n \n", r"t\.txt: the text has no tokens"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_text_is_one_line_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    data, message = BAD[kind]
    (tmp_path / "t.txt").write_bytes(data)
    with pytest.raises(ElmoError, match=message) as error:
        make(tmp_path / "out", tmp_path / "t.txt")
    assert "\n" not in str(error.value)
    assert {p.name for p in tmp_path.iterdir()} <= {"t.txt", "runs"}


BAD_RECORDS = {
    "no json": ('{"text": "a"}\n{oops\n', r"d\.jsonl:2: not valid JSON"),
    "no second field": ('{"a": "a"}\n', r"d\.jsonl:1: no field 'b' in this record, found a;"),
    "no text": ('{"a": "a", "b": 1}\n', r"d\.jsonl:1: field 'b' must be a string, found int"),
    "no field": ('{"text": "a"}\n{"txt": "a"}\n', r"d\.jsonl:2: no field 'text'"),
    "no record": ('["a"]\n', r"d\.jsonl:1: no field 'text'"),
    "a number": ('{"text": 3}\n', r"d\.jsonl:1: field 'text' must be a string, found int"),
    "5,000 digits": ('{"text": "a", "n": %s}\n' % ("9" * 5000), r"d\.jsonl:1: "),
    "zero byte": ('{"text": "a\\u0000"}\n', r"d\.jsonl:1: field 'text' contains a zero byte"),
    "surrogate": ('{"text": "\\ud800"}\n', r"d\.jsonl:1: field 'text' has an unpaired surrogate"),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_bad_record_is_named_by_its_line(tmp_path: Path, kind: str) -> None:
    data, message = BAD_RECORDS[kind]
    (tmp_path / "d.jsonl").write_text(data)
    column = "a + b" if '"a": ' in data else "text"
    with pytest.raises(ElmoError, match=message):
        make(tmp_path / "out", tmp_path / "d.jsonl", column=column)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".zst", ".xz"])
def test_a_truncated_or_mislabelled_file_is_named(tmp_path: Path, ending: str) -> None:
    data = random.Random(0).randbytes(40_000).hex().encode()
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    packed = pack.get(ending, lambda d: pa.compress(d, "zstd", asbytes=True))(data)
    path = tmp_path / f"t.txt{ending}"
    for bad in (packed[: len(packed) // 2], data):
        path.write_bytes(bad)
        message = rf"t\.txt{ending}: truncated or not [^;]+; restore[^;]+$"
        with pytest.raises(ElmoError, match=message):
            make(tmp_path / "out", path)


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    pq.write_table(pa.table({"review": ["a"], "n": [1]}), path)
    with pytest.raises(ElmoError, match=r"d\.parquet: no column 'text', found review, n"):
        make(tmp_path / "out", path)
    with pytest.raises(ElmoError, match=r"d\.parquet: column 'n' must hold strings, found int64"):
        make(tmp_path / "out", path, column="n")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ElmoError, match=r"d\.parquet: not a complete Parquet file"):
        make(tmp_path / "out", path, column="review")
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)
    with pytest.raises(ElmoError, match=r"d\.parquet: has 2 columns 'text'; rename all but one"):
        make(tmp_path / "out", path)
    texts = [f"some text {i}" for i in range(5000)]
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False, compression="zstd")
    data = bytearray(path.read_bytes())
    data[2000:3000] = bytes(1000)
    path.write_bytes(data)
    with pytest.raises(ElmoError, match=r"d\.parquet: damaged") as error:
        make(tmp_path / "out", path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz", "t.jsonl", "t.parquet"])
def test_a_line_or_record_over_the_limit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in (utf8_lines, format_parquet):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 3000)
    path = tmp_path / name
    texts = ["short", "x " * 1450, "y " * 1600]
    if name.endswith("parquet"):
        pq.write_table(pa.table({"text": texts}), path)
    else:
        lines = [json.dumps({"text": t}) for t in texts] if name.endswith("jsonl") else texts
        data = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    line = "" if name.endswith("parquet") else ":3"
    with pytest.raises(ElmoError, match=rf"{re.escape(name)}{line}: .* MiB.*; split it into lines"):
        make(tmp_path / "out", path)
    for module in (utf8_lines, format_parquet):
        monkeypatch.setattr(module, "MAX_LINE_BYTES", 4000)
    assert len(in_order(make(tmp_path / "out", path))) == 3


def test_all_files_with_bad_text_are_named_at_once(tmp_path: Path) -> None:
    for k in range(6):
        (tmp_path / f"{k}.txt").write_bytes(b"fine\n" * 3 + (b"na\xefve\n" if k % 2 else b""))
    with pytest.raises(ElmoError, match="3 files cannot be read: ") as error:
        make(tmp_path / "out", *sorted(tmp_path.glob("*.txt")))
    assert all(f"{k}.txt:4" in str(error.value) for k in (1, 3, 5))


@pytest.mark.parametrize(
    ("text", "heldout", "rule"),
    [
        ("one\n\ntwo\n\nthree\n", 0.001, "line"),
        ("one\n\ntwo\n\nthree\n", 0.9999, "line"),
        ("".join(f"line {k}\n" for k in range(200)), 0.05, "line"),
        ("".join(f"line {k}\n\n" for k in range(8)), 0.05, "blank"),
        ("".join(f"line {k}\n\n" for k in range(900)), 0.05, "blank"),
        ("A title\n\n" + "".join(f"line {k} of a novel\n" for k in range(2000)), 0.43, "line"),
        ("a\n\n" * 60 + "".join(f"line {k} of a novel\n" for k in range(2000)), 0.05, "line"),
    ],
)
def test_some_of_every_text_is_held_out_and_most_is_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, heldout: float, rule: str
) -> None:
    (tmp_path / "text.txt").write_text(text)
    shards = make(tmp_path / "out", tmp_path / "text.txt", documents="auto", heldout=heldout)
    splits = shards.manifest.splits
    assert splits["heldout"].documents and splits["train"].documents
    assert heldout > 0.5 or 2 * splits["heldout"].tokens < shards.tokens()
    lines = sum(bool(line) for line in text.split("\n"))
    assert shards.manifest.counts.documents == lines
    assert ("each line is a document" in capfd.readouterr().err) == (rule == "line")
    recorded = shards.manifest.tokenizer
    assert (recorded.documents, recorded.heldout) == ("auto", heldout)  # as in the settings


def test_what_is_held_out_is_known_before_the_text_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_pieces: list[Piece]
) -> None:
    """Each piece is cut once, whatever the text; the beginning of a large one is read twice."""
    from pipeline.text import held_out, input_files

    read = []
    path, _ = long_text(tmp_path)
    make(tmp_path / "out", path, documents="auto", heldout=0.05)
    assert [piece.number for piece in cut_pieces] == list(range(len(cut_pieces)))
    assert len(cut_pieces) > 30
    monkeypatch.setattr(held_out, "_MAX_MEASURED_BYTES", 4096)
    every = input_files.read_chunk
    blocks = "pipeline.text.utf8_lines.read_chunk"
    monkeypatch.setattr(blocks, lambda *given: read.append(given[-1]) or every(*given))
    inputs = find_inputs([str(path)])
    held_out.choose_held_out_rule(
        inputs, params(documents="auto", heldout=0.05), column="text", is_independent=True
    )
    assert sum(read) < 20_000 < path.stat().st_size


def test_of_a_text_that_shares_files_the_settings_alone_say_what_a_document_is(
    tmp_path: Path,
) -> None:
    from pipeline.text.held_out import choose_held_out_rule

    small, large = (f"text {k}\n" for k in range(60)), (f"line {k}" for k in range(2000))
    inputs = find_inputs([str(text_file(tmp_path, [*small, *large]))])
    how = params(documents="auto", heldout=0.1)
    for is_independent, rule in ((True, "line"), (False, "auto")):
        chosen = choose_held_out_rule(inputs, how, column="text", is_independent=is_independent)
        assert chosen.documents == rule


def test_a_file_that_is_added_is_cut_alone(tmp_path: Path, cut_pieces: list[Piece]) -> None:
    """The shards of the others stay, their names and bytes; only what they add to ids changes."""
    pick, folder = random.Random(1), tmp_path / "texts"
    folder.mkdir()

    def write(name: str) -> None:
        text_file(folder, [f"{name} {pick.random()} of it" for _ in range(150)], name)

    for name in ("b.txt", "c.txt", "d.txt", "e.txt"):
        write(name)
    how = {"documents": "auto", "heldout": 0.2, "sentences": "split", "shard_bytes": 4096}
    old = make(tmp_path / "out", folder, **how)
    before = contents(tmp_path / "out")
    cut_pieces.clear()
    write("a.txt")
    (folder / "empty.txt").write_text("")
    (folder / "e.txt").unlink()
    new = make(tmp_path / "out", folder, **how)
    after = contents(tmp_path / "out")
    assert {piece.spans[0].input.name for piece in cut_pieces} == {"a.txt"}
    kept = {entry.file for entry in old.entries()} & set(after)
    assert len(kept) > 6 and all(after[name] == before[name] for name in kept)
    assert in_order(new)[0][0] == "a.txt" and in_order(new)[-1][0] == "d.txt"
    assert after == contents(make(tmp_path / "afresh", folder, **how).location.local)
    for name in sorted(kept)[:2]:  # what is damaged is cut again
        (tmp_path / "out" / name).write_bytes(before[name][:-8] + bytes(8))
    make(tmp_path / "out", folder, **how)
    assert contents(tmp_path / "out") == after


def test_shards_are_taken_over_where_all_that_they_depend_on_is_the_same(
    tmp_path: Path, cut_pieces: list[Piece]
) -> None:
    make(tmp_path / "out", text_file(tmp_path, LINES))
    piece, (span,) = cut_pieces[0], cut_pieces[0].spans
    files = [structs.replace(span.input, url="a.csv"), structs.replace(span.input, url="a.txt.gz")]
    files.append(structs.replace(span.input, sha256="0" * 64))
    spans = [
        replace(span, start=1),
        replace(span, stop=3),
        *(replace(span, input=f) for f in files),
    ]
    changes: list[dict[str, Any]] = [
        {},
        {"column": "x"},
        {"version": 0},
        {"copy_number": 1},
        {"keep": ("x",)},
        {"repeated_lines": (1,)},
        {"excluded_lines": (("copy", ((0, 1),)),)},
        {"tokenizer": Tokenization("x")},
        {"params": params(shard_bytes=4096)},
        {"rule": replace(piece.rule, documents="file")},
        {"rule": replace(piece.rule, threshold=9)},
        *({"spans": (one,)} for one in spans),
    ]
    assert len({replace(piece, **change).digest for change in changes}) == len(changes)


def test_shards_at_a_url_are_taken_over_from_the_folder_before(
    tmp_path: Path, cut_pieces: list[Piece]
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        text_file(tmp_path, [f"{name} {k} of it" for k in range(90)], name)
    places = [Location(f"memory://taken-over/{k}") for k in range(3)]
    where = {"work": Location(tmp_path / "runs"), "cluster": CLUSTER, "column": "text"}
    for out, names, previous_output in zip(
        places, ("ac", "abc", "abc"), (None, places[0], None), strict=True
    ):
        cut_pieces.clear()
        inputs = find_inputs([str(tmp_path / f"{name}.txt") for name in names])
        tokenize.tokenize(
            inputs, out, params(heldout=0.2), previous_output=previous_output, **where
        )
        cut_names = {piece.spans[0].input.name for piece in cut_pieces}
        assert cut_names == ({"b.txt"} if previous_output else {f"{name}.txt" for name in names})
    assert places[1].sizes() == places[2].sizes() != places[0].sizes()
    assert Shards(places[1]).digest == Shards(places[2]).digest
    assert len(in_order(Shards(places[1]))) == 270
    places[0].remove()


@pytest.mark.parametrize("documents_", ["auto", "file"])
def test_two_files_with_one_text_are_both_there(tmp_path: Path, documents_: str) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        text_file(tmp_path, ["the same", "", "text"] * 20, name)
    shards = make(tmp_path / "out", *sorted(tmp_path.glob("*.txt")), documents=documents_)
    assert len(in_order(shards)) == 3 * 60
    numbers = [number for number, _ in documents(shards).values()]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == shards.manifest.counts.documents


def test_small_files_of_many_share_shards_that_stay_when_one_is_added(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for k in range(600):
        (folder / f"{k:04d}.txt").write_text(f"letter {k}\n")
    old = make(tmp_path / "out", folder, documents="file", heldout=0.1)
    assert [number for number, _ in documents(old).values()] == list(range(600))
    assert 100 < len({entry.file.split("-")[1] for entry in old.entries()}) < 200
    (folder / "0300a.txt").write_text("a letter more\n")
    new = make(tmp_path / "out", folder, documents="file", heldout=0.1)
    changed = {e.file for e in new.entries()} - {e.file for e in old.entries()}
    assert 1 <= len(changed) <= 2
    assert [number for number, _ in documents(new).values()] == list(range(601))


def test_a_file_of_both_texts_falls_to_one_side(tmp_path: Path) -> None:
    """Else what is held out of the domain text might have been learned from in the general one."""
    for name in ("a", "b"):
        lines = "".join(f"{name} {k}\n" for k in range(8))
        (tmp_path / f"{name}.csv").write_text(f"text\n{lines}")
    both_files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    both_texts = make_corpus(tmp_path, both_files, both_files[:1])
    with pytest.raises(ElmoError, match=r"no document is held out .*heldout 0\.001; raise it, "):
        run(both_texts, tmp_path / "out", "domain", documents="auto", heldout=0.001)


def test_records_are_not_divided(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text\n" + "".join(f"article {k}\n" for k in range(8)))
    manifest = make(tmp_path / "out", table, documents="auto", heldout=0.001).manifest
    assert (manifest.tokenizer.documents, manifest.tokenizer.heldout) == ("auto", 0.001)
    assert manifest.splits["heldout"].documents == 1
    assert manifest.splits["train"].documents == 7
    table.write_text("text\none\n")
    with pytest.raises(ElmoError, match="no document is held out .* or name more text$"):
        make(tmp_path / "none", table, documents="auto", heldout=0.001)
    assert not (tmp_path / "none").exists()


def test_a_share_of_more_than_half_is_kept_but_holds_something_out(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("text\n" + "".join(f"{'word ' * 400}{k}\n" for k in range(20)))
    manifest = make(tmp_path / "out", table, documents="auto", heldout=0.9).manifest
    assert manifest.tokenizer.heldout == 0.9
    assert manifest.splits["heldout"].tokens > manifest.splits["train"].tokens > 0


def test_what_a_document_is_was_chosen_and_stays(tmp_path: Path) -> None:
    path = text_file(tmp_path, [f"line {i}" for i in range(200)])
    for documents in ("blank", "file"):
        with pytest.raises(ElmoError, match=r"set tokenize\.documents to line, "):
            make(tmp_path / "out", path, documents=documents, heldout=0.05)
    assert make(tmp_path / "out", path, documents="line", heldout=0.05).tokens("heldout") > 0


@pytest.mark.parametrize("format_", ["jsonl", "parquet", "text", "mixed"])
def test_the_default_document_is_a_record_or_what_blank_lines_divide(
    tmp_path: Path, format_: str
) -> None:
    texts = [f"record {i}\nwith\n\nthree lines" for i in range(100)]
    folder = tmp_path / "in"
    folder.mkdir()
    if format_ in ("jsonl", "mixed"):
        text_file(folder, [json.dumps({"text": text}) for text in texts], "a.jsonl")
    if format_ in ("parquet", "mixed"):
        pq.write_table(pa.table({"text": texts}), folder / "b.parquet")
    if format_ in ("text", "mixed"):
        text_file(folder, [text.replace("\n\n", "\n") + "\n" for text in texts], "c.txt")
    shards = make(tmp_path / "out", folder, documents="auto", heldout=0.05, sentences="split")
    count = 300 if format_ == "mixed" else 100
    assert shards.manifest.counts.documents == count
    assert shards.tokens("heldout") and shards.tokens("train")
    sentences, rows_of = rows(shards), dict[int, list[str]]()
    for sentence_id, (document, _) in documents(shards).items():
        rows_of.setdefault(document, []).append(" ".join(sentences[sentence_id]))
    assert list(rows_of) == list(range(count))
    assert all(lines[1:] == ["with", "three lines"] for lines in rows_of.values())


def test_blank_lines_are_no_sentences_where_sentences_are_split_out(tmp_path: Path) -> None:
    path = text_file(tmp_path, ["", *LINES, "\u00a0", ""])
    shards = make(tmp_path / "out", path, sentences="split", documents="blank")
    assert all(in_order(shards))
    assert shards.manifest.counts.blank_lines == 5
    assert shards.manifest.counts.sentences == len(in_order(shards))
    assert shards.manifest.counts.bytes == path.stat().st_size
    lines = make(tmp_path / "lines", path, sentences="line", documents="blank")
    assert len(in_order(lines)) == len(LINES) + 3


STAGE = """
import os, resource, signal, sys, threading
from contextlib import nullcontext
from pathlib import Path
from elmo.io.location import Location
from pipeline.cluster import workers
from pipeline.stages import tokenize
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings
from pipeline.text import shard_builder
from pipeline.text.input_files import find_inputs

def killing(function, at):
    calls, counting = 0, threading.Lock()
    def called(*arguments, **named):
        nonlocal calls
        with counting:  # in whichever thread: none begins a call after this one
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **named)
    return called

def tasks(function, items, **_):
    for item in items:
        if function.args[0] is shard_builder.tokenize_piece:
            print(item.number, flush=True)
        yield function(item)

out, name, at = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
workers.map_tasks, workers.session = tasks, nullcontext
where = shard_builder if name == "describe_shard" else Location
setattr(where, name, killing(getattr(where, name), at))
params = TokenizeSettings("unicode", "line", "line", 0.2, 0.0, 0, 0, 0, 1.0, (), int(sys.argv[5]))
inputs = find_inputs([sys.argv[1]])
tokenize.tokenize(
    inputs, Location(out), params, column="text", work=Location(out.parent / "runs"),
    cluster=Cluster(workers=0, cpus=1, gpu=False, actors=1),
)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def run_stage(
    path: Path, out: Path, name: str = "write_json", at: int = -1, *, shard_bytes: int = 4096
) -> subprocess.CompletedProcess[str]:
    """Tokenize in a process that is killed at a call; it prints the pieces and its memory."""
    arguments = [str(path), str(out), name, str(at), str(shard_bytes)]
    return subprocess.run([sys.executable, "-c", STAGE, *arguments], capture_output=True, text=True)


def stage(path: Path, out: Path, name: str = "write_json", at: int = -1) -> tuple[int, list[int]]:
    """Return the exit code of `run_stage`, and the numbers of the pieces that it worked on."""
    ended = run_stage(path, out, name, at)
    return ended.returncode, [int(number) for number in ended.stdout.split()]


@pytest.mark.parametrize(
    ("name", "at", "again"),
    [
        ("describe_shard", 6, 3),  # in the third piece, between its two shards
        ("write_json", 4, 4),  # the shards of the fourth are written, its record is not
        ("take_file", 3, 2),  # two shards are on their way
    ],
)
@pytest.mark.slow
def test_killed_and_run_again_gives_the_same_bytes_and_redoes_no_finished_piece(
    tmp_path: Path, name: str, at: int, again: int
) -> None:
    path, _ = long_text(tmp_path, lines=600)
    assert stage(path, tmp_path / "whole/out")[0] == 0
    assert stage(path, tmp_path / "killed/out", name, at)[0] == -9
    assert not (tmp_path / "killed/out").exists()
    ended, numbers = stage(path, tmp_path / "killed/out")
    assert ended == 0
    if name == "take_file":
        assert len(numbers) <= again
    else:
        assert numbers[0] == again - 1
    assert contents(tmp_path / "killed/out") == contents(tmp_path / "whole/out")
    assert [p.name for p in (tmp_path / "killed").iterdir()] == ["out"]


def run_twice(function, items, **_):  # type: ignore[no-untyped-def]
    """Do each task again, as after a retry."""
    for item in items:
        function(item)
        yield function(item)


def run_backwards(function, items, **_):  # type: ignore[no-untyped-def]
    return reversed([function(item) for item in reversed(list(items))])


@pytest.mark.parametrize("run_tasks", [run_twice, run_backwards])
def test_tasks_done_twice_or_in_another_order_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_tasks: Callable[..., Any]
) -> None:
    path, text = long_text(tmp_path)
    once = make(tmp_path / "once", path, heldout=0.2)
    monkeypatch.setattr(workers, "map_tasks", run_tasks)
    again = make(tmp_path / "again", path, heldout=0.2)
    assert contents(again.location.local) == contents(once.location.local)
    assert in_order(once) == [line.split() for line in text]


def test_the_stage_reads_the_corpus_folder_and_notices_changed_files(tmp_path: Path) -> None:
    own = text_file(tmp_path, LINES, "own.txt")
    texts = make_corpus(tmp_path, [own], [own])
    metrics = run(texts, tmp_path / "out", "general")
    assert metrics["sentences"] == len(LINES) and metrics["blank_lines"] == 2
    own.write_text("other text\n")
    with pytest.raises(ElmoError, match=r"own\.txt: has changed since the corpus stage"):
        run(texts, tmp_path / "out", "general")


@pytest.mark.parametrize(("name", "module"), [("korean", "kiwipiepy"), ("japanese", "fugashi")])
@pytest.mark.slow
def test_korean_and_japanese_tokens_are_the_text_cut(
    tmp_path: Path, name: str, module: str
) -> None:
    pytest.importorskip(module, reason=f"the extra {name} is not installed")
    lines = ["나는 밥을 먹었다. 정말 좋았어요!", "", "吾輩は猫である。 ガラスの名前。", "a b"]
    shards = make(tmp_path / "out", text_file(tmp_path, lines), tokenizer=name)
    decomposed = [unicodedata.normalize("NFD", line) for line in lines]
    again = make(tmp_path / "again", text_file(tmp_path, decomposed, "nfd.txt"), tokenizer=name)
    assert in_order(again) == in_order(shards)
    assert again.manifest.counts.dropped["tokenizer"].bytes > 40  # which composing saves
    found = in_order(shards)
    assert ["".join(row) for row in found] == ["".join(line.split()) for line in lines]
    assert len(found[0 if name == "korean" else 2]) > 6


def test_little_held_out_text_is_said() -> None:
    figures = {"tokens": 58_610, "sentences": 6_000, "shards": 2, "heldout_tokens": 293}
    said = "58,610 tokens in 6,000 sentences, 2 shards"
    few = "; only 293 tokens are held out, too few to measure perplexity reliably: raise "
    assert tokenize.summary(figures) == f"{said}{few}tokenize.heldout"
    assert tokenize.summary(figures | {"heldout_tokens": 2_000}) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Clerks slept in the\nold mill, which had been\nbuilt in 1700.\n\n" * 30, "end within"),
        ("| 1 | 2 |\n---\nsome words\n" * 30, "60 sentences hardly look like text"),
        ("the same line\n" * 30 + "another line\n", "29 sentences repeat others"),
        (unicodedata.normalize("NFD", "연기가 정말 좋았다.\n"), "3 tokens are not in NFC"),
        ("".join(f"Sentence {k} of text.\n" for k in range(9)) + "Another, and\nits end.\n", ""),
    ],
)
def test_what_is_odd_about_a_text_is_said(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.txt").write_text(text)
    texts = make_corpus(tmp_path, [tmp_path / "t.txt"], [tmp_path / "t.txt"])
    figures = run(texts, tmp_path / "out", "general", sentences="split")
    line = tokenize.summary(figures | {"heldout_tokens": 9999})
    assert said in line if said else ";" not in line
    assert "\n" not in line


def test_a_query_of_the_report_that_is_no_token_is_refused_before_anything_is_cut(
    tmp_path: Path,
) -> None:
    """Hours of training would come between it and the report."""
    whole = load_params(Path(__file__).resolve().parents[3] / "params.yaml")
    changed = replace(whole, report=replace(whole.report, neighbors_of=("it is [un-known] here",)))
    given = {"cluster": CLUSTER, "corpus": tmp_path, "work": tmp_path}
    with pytest.raises(
        ElmoError, match=r"params.yaml: report.neighbors_of: \[un-known\] is not one"
    ):
        tokenize.STAGE.run(params=changed, text="domain", out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
