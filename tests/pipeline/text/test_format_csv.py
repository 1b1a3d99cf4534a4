"""CSV and TSV as text: the fields, and every byte of the files, whatever stands in them."""

import csv
import gzip
import io
import json
import random
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.text.accounting import Accounting
from pipeline.text.input_files import find_inputs
from pipeline.text.pieces import plan_pieces
from pipeline.text.reader import ReadOptions, load_reader

TEXTS = ["a", "", 'he said "no, never"', "two\nlines", "", "ü 한국어", "x, y", "\n\nend\n", '"']


def read(path: Path, *, column: str = "text", size: int = 40) -> tuple[bytes, list[int], int]:
    """The lines, the record of each, and how many bytes were counted."""
    (input_,) = find_inputs([str(path)])
    reader, options = load_reader(input_), ReadOptions(column, size=size)
    reader.check_head(input_, options)
    ((span,),) = plan_pieces(
        [input_], shard_bytes=1 << 20 if "jsonl" in path.name else 1 << 9, documents="line"
    )
    accounting = Accounting()
    blocks = list(reader.blocks(span, options, accounting))
    text = b"".join(block for block, _ in blocks)
    numbers = [int(n) for _, records in blocks for n in records.numbers]  # type: ignore[union-attr]
    inside = len(text) - accounting.added_newlines
    assert accounting.bytes == inside + accounting.fields + accounting.mark
    return text, numbers, accounting.bytes


def as_json(texts: list[str], path: Path) -> tuple[bytes, list[int]]:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return read(path)[:2]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", [True, False])
def test_csv_has_the_texts_that_were_written(
    tmp_path: Path, end: str, quoting: int, mark: str, last: bool
) -> None:
    draw = random.Random(0)
    texts = [draw.choice(TEXTS) for _ in range(300)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerow(["id", "text", "label"])
    writer.writerows([k, text, "x,\n"] for k, text in enumerate(texts))
    data = (mark + (out.getvalue() if last else out.getvalue().removesuffix(end))).encode()
    (tmp_path / "in.csv").write_bytes(data)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(data))
    text, numbers, counted = read(tmp_path / "in.csv")
    assert (text, numbers) == as_json(texts, tmp_path / "in.jsonl")
    assert counted == len(data)
    assert read(tmp_path / "packed.csv.gz") == (text, numbers, counted)


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    (tmp_path / "in.tsv").write_text('n\treview\n1\t"half a quotation\n\n2\t say "yes", no\n3\t\n')
    text, numbers, counted = read(tmp_path / "in.tsv", column="review")
    assert text == b'"half a quotation\n say "yes", no\n\n'
    assert numbers == [0, 1, 2] and counted == (tmp_path / "in.tsv").stat().st_size


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"id,txt\n1,a\n", "in.csv:1: .* 'text', found id, txt; set corpus.column"),
        (b"text;n\na;1\n", "in.csv:1: .* ';': 'text;n'; write commas: python -c"),
        (b"text;n, unit\na, b;1, 2\n", "in.csv:1: .* ';': .*; write commas: python -c"),
        (b"text\tn\na\t1\n", "in.csv:1: .* '.t': .*; rename the file to .tsv"),
        (b"text,text\na,b\n", "names 'text' twice"),
        (b'n,text\n1,a\n2,"b\n3,c\n', "in.csv:3: a quotation mark .* is never closed"),
        (b'n,text\n1,"a\nb"\n\n2,"b" c\n', "in.csv:5: text follows a closing quotation mark"),
        (b"n,text\n1,a\n2,b,c\n", "in.csv:3: 3 fields, 2 in the header"),
        (b"n,text\n1,\xff\n", "in.csv:2: byte 3 of the line .* is not UTF-8"),
        (b"n,text\n1,a\0\n", "in.csv:2: .* zero byte"),
        (b"n,text\r1,a\r", "in.csv:1: .* carriage return"),
    ],
)
def test_what_is_no_csv_is_named_by_its_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    with pytest.raises(ElmoError, match=said):
        read(tmp_path / "in.csv")


def test_a_header_alone_holds_no_text(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"n,text")
    assert read(tmp_path / "in.csv") == (b"", [], 6)


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_a_column_of_a_table_without_header_has_a_number(tmp_path: Path, name: str) -> None:
    mark = "\t" if name == "t.tsv" else ","
    (tmp_path / name).write_text("".join(f"{k}{mark}mill {k}\n" for k in range(4)))
    text, records, _ = read(tmp_path / name, column="2")
    assert text == b"mill 0\nmill 1\nmill 2\nmill 3\n" and records == [0, 1, 2, 3]
    with pytest.raises(ElmoError, match=r":1: .* '3', found .* the column's number"):
        read(tmp_path / name, column="3")
    (tmp_path / name).write_text(f"1{mark}2\na{mark}b\n")
    assert read(tmp_path / name, column="2")[0] == b"b\n"  # a name in the header goes first
