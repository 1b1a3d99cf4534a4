"""Text that is none, names of no text, and what a corpus names that has changed since."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.hostile.harness import DAMAGE, refused
from tests.pipeline.command_line import ROOT, elmo

SETTINGS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
GOOD = "".join(f"A sentence of some words, number {k}.\n\n" for k in range(40))
CORPUS = ["corpus", "corpus", "--work", "work", "--params", "params.yaml"]
TOKENIZE = ["tokenize", "corpus", "general", "shards", "--work", "work", "--params", "params.yaml"]


def settings(folder: Path, name: str) -> None:
    """Settings whose corpus is this file, and `good.txt` as the text of the domain."""
    (folder / "good.txt").write_text(GOOD, encoding="utf-8")
    own = {
        "general": [name],
        "domain": ["good.txt"],
        "domain_package": "numpy",
        "column": "text",
        "keep": [],
    }
    value = SETTINGS | {"corpus": own}
    value["tokenize"] = SETTINGS["tokenize"] | {"tokenizer": "whitespace", "sentences": "line"}
    value["tokenize"]["heldout"] = 0.2
    (folder / "params.yaml").write_text(yaml.safe_dump(value), encoding="utf-8")


PLAIN = GOOD.encode()


# Each begins as no plain text does, in each command that reads a text.
OTHERS = {
    "JSON lines": b'{"text": "a gift"}\n' * 3,
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


# Of those that no file of tests/pipeline/text tries.
NAMES = {
    "a long name": "x" * 300,
    "a line end in the name": "no\nsuch.txt",
    "no such protocol": "nothing://texts/a.txt",
    "no such file of a URL": "file:///no/such/texts.txt",
    "a dangling link": "link",
}


@pytest.mark.parametrize("what", NAMES)
def test_names_that_stand_for_no_text(tmp_path: Path, what: str) -> None:
    (tmp_path / "link").symlink_to("gone")
    settings(tmp_path, NAMES[what])
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
