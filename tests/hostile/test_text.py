"""Text that is none: encodings, zero bytes, endless lines, broken records, names, and what a
corpus names that has changed since."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.hostile.harness import DAMAGE, refused
from tests.pipeline.command_line import ROOT, elmo

SETTINGS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
GOOD = "".join(f"A sentence of some words, number {k}.\n\n" for k in range(40))
CORPUS = ["corpus", "corpus", "--work", "work", "--params", "params.yaml"]
TOKENIZE = ["tokenize", "corpus", "general", "shards", "--work", "work", "--params", "params.yaml"]


def settings(folder: Path, *names: str, **tokenize: Any) -> None:
    """Settings whose corpus is these files, and `good.txt` as the text of the domain."""
    (folder / "good.txt").write_text(GOOD, encoding="utf-8")
    own = {
        "general": list(names),
        "domain": ["good.txt"],
        "domain_package": "numpy",
        "column": "text",
        "keep": [],
    }
    value = SETTINGS | {"corpus": own}
    value["tokenize"] = SETTINGS["tokenize"] | {"tokenizer": "whitespace", "sentences": "line"}
    value["tokenize"] |= {"heldout": 0.2} | tokenize
    (folder / "params.yaml").write_text(yaml.safe_dump(value), encoding="utf-8")


def refused_text(folder: Path, name: str, *, names: str = "") -> None:
    """One of the two stages that read text refuses this file."""
    settings(folder, name)
    code, _, _ = elmo(*CORPUS, cwd=folder)
    if code:
        assert not (folder / "corpus").exists()
        refused(*CORPUS, cwd=folder, names=names or name)
        assert not (folder / "work").exists()
    else:
        refused(*TOKENIZE, cwd=folder, names=names or name)
        assert not (folder / "shards").exists() and not (folder / "work").exists()


def table(**columns: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def line(record: Any) -> bytes:
    return json.dumps(record).encode() + b"\n"


PLAIN = GOOD.encode()
FILES: dict[str, tuple[str, bytes]] = {
    "a table with the line ends of old Macs": ("in.csv", b"n,text\r1,a\r2,b\r"),
    "a number of 5,000 digits": (
        "in.jsonl",
        line({"text": "a"})[:-2] + b', "n": ' + b"9" * 5000 + b"}",
    ),
    "an endless word": ("in.txt", PLAIN + b"x" * (17 << 20)),
    "a picture": ("in.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256))),
    "one document": ("in.txt", b"All in one document.\n"),
    "rows without text": ("in.parquet", table(text=pa.array([None] * 9, pa.string()))),
    "a mark that is never closed": ("in.csv", b'n,text\n1,a\n2,"b\n3,c\n'),
    "a spreadsheet": ("in.xlsx", b"PK\3\4" + bytes(30)),
}


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_no_text(tmp_path: Path, what: str) -> None:
    name, data = FILES[what]
    (tmp_path / name).write_bytes(data)
    refused_text(tmp_path, name)


# Each begins as no plain text does, in each command that reads a text.
OTHERS = {
    "JSON lines": line({"text": "a gift"}) * 3,
    "HTML": b"<!DOCTYPE html><html>\n<p>a gift</p>\n",
    "UTF-16": "a gift\n".encode("utf-16"),
    "UTF-32": "a gift\n".encode("utf-32"),
    "old Macs": b"a gift\rhe has\r",
    "gzip": gzip.compress(PLAIN),
}


@pytest.mark.parametrize("what", OTHERS)
def test_each_command_says_what_a_file_is(case: Path, what: str) -> None:
    (case / "a.txt").write_bytes(OTHERS[what])
    for words in (
        ["embed", "model", "--input", "a.txt", "--output", "o.npz"],
        ["perplexity", "model", "--input", "a.txt"],
        ["task", "predict", "model", "--input", "a.txt"],
    ):
        said = refused(*words, cwd=case, names="a.txt: is ")
        assert what in said and "corpus.column" not in said
    code, _, error = elmo("perplexity", "model", "--input", "-", stdin=OTHERS[what], cwd=case)
    assert code == 1 and "<stdin>: is " in error and "corpus.column" not in error


def test_a_hidden_file_is_read_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / ".in.txt").write_bytes(PLAIN)
    settings(tmp_path, ".in.txt")
    assert elmo(*CORPUS, cwd=tmp_path)[0] == 0


def other_kinds(folder: Path) -> None:
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_bytes(PLAIN)
    (folder / "texts" / "notes.docx").write_bytes(b"PK")


def hidden(folder: Path) -> None:
    (folder / "texts" / ".git").mkdir(parents=True)
    (folder / "texts" / ".git" / "a.txt").write_bytes(PLAIN)


# What is made, and the name in the settings.
NAMES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nowhere": (lambda folder: None, "no/such.txt"),
    "a long name": (lambda folder: None, "x" * 300),
    "a line end in the name": (lambda folder: None, "no\nsuch.txt"),
    "glob of nothing": (lambda folder: None, "*.md"),
    "no such protocol": (lambda folder: None, "nothing://texts/a.txt"),
    "no such file of a URL": (lambda folder: None, "file:///no/such/texts.txt"),
    "a folder that is empty": (lambda folder: (folder / "texts").mkdir(), "texts"),
    "a folder of other kinds": (other_kinds, "texts"),
    "a folder of hidden files": (hidden, "texts"),
    "a dangling link": (lambda folder: (folder / "texts").symlink_to("gone"), "texts"),
}


@pytest.mark.parametrize("what", NAMES)
def test_names_that_stand_for_no_text(tmp_path: Path, what: str) -> None:
    make, name = NAMES[what]
    make(tmp_path)
    settings(tmp_path, name)
    refused(*CORPUS, cwd=tmp_path)
    assert not (tmp_path / "corpus").exists() and not (tmp_path / "work").exists()


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """A corpus of `in.txt`."""
    (tmp_path / "in.txt").write_text(GOOD)
    settings(tmp_path, "in.txt")
    assert elmo(*CORPUS, cwd=tmp_path)[0] == 0
    return tmp_path


@pytest.mark.parametrize("what", DAMAGE)
def test_text_that_has_changed_since(collected: Path, what: str) -> None:
    DAMAGE[what](collected / "in.txt")
    refused(*TOKENIZE, cwd=collected, names="in.txt")
    assert not (collected / "work").exists()


@pytest.mark.parametrize("what", DAMAGE)
def test_a_corpus_that_is_damaged(collected: Path, what: str) -> None:
    DAMAGE[what](collected / "corpus" / "manifest.json")
    refused(*TOKENIZE, cwd=collected, names="corpus/manifest.json")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_byte_order_mark_is_no_token(case: Path, end: str) -> None:
    text = end.join(["the gift for him", "a gift", ""])
    printed = {}
    for mark in ("", "\ufeff"):
        (case / "in.txt").write_bytes((mark + text).encode())
        code, printed[mark], errors = elmo("perplexity", "model", "--input", "in.txt", cwd=case)
        assert code == 0, errors
        out = f"out-{len(mark)}.npz"
        code, _, errors = elmo("embed", "model", "--input", "in.txt", "--output", out, cwd=case)
        assert code == 0, errors
    assert printed[""] == printed["\ufeff"] and " 6 tokens" in printed[""]
    with np.load(case / "out-0.npz") as plain, np.load(case / "out-1.npz") as marked:
        assert [marked[key].shape for key in marked] == [plain[key].shape for key in plain]
