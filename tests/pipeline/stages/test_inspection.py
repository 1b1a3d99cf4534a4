"""inspect: what it says of each filter is what the tokenize stage leaves out with it."""

import csv
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from elmo.data.manifest import DroppedText
from pipeline.settings.cluster import Cluster
from pipeline.settings.params import TokenizeSettings
from pipeline.stages.inspection import inspect_text
from pipeline.text.input_files import find_inputs
from tests.pipeline.command_line import elmo
from tests.pipeline.stages.test_tokenize import make

pytestmark = pytest.mark.usefixtures("in_process")

CLUSTER = Cluster(workers=0, cpus=1, gpu=False, actors=1)
PARAMS = TokenizeSettings("whitespace", "line", "auto", 0.1, 0.0, 0, 0, 0, 1.0, (), 1 << 20)
SETTINGS = {
    "copy": {},
    "near_copy": {"near_duplicates": 0.3},
    "repeated_line": {"repeated_lines": 10},
    "short": {"min_bytes": 100},
    "long": {"max_bytes": 1_000_000},
    "symbols": {"max_symbols": 0.3},
    "script": {"scripts": ("latin",)},
}


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A text and a table with some of each fault, known by the number of the document."""
    pick = random.Random(4)
    folder = tmp_path_factory.mktemp("dirty")
    plain = [
        f"Document {k}. " + " ".join(f"word{pick.randrange(10**5)}" for _ in range(70))
        for k in range(90)
    ]
    near = plain[3].replace("Document 3. ", "Document. ")
    others = ["short", "1 2 3 | 4 5 6 | " * 20, "Совсем по-русски. " * 9, "a long one. " * 90_000]
    texts = [f"A & header\n{text}" for text in [*plain[:60], near, *others, "CafÃ© is broken."]]
    (folder / "a.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    with (folder / "b.csv").open("w", newline="", encoding="utf-8") as file:
        pairs = [
            f"{plain[61]}\n{plain[0][13:]} {k}" for k in range(2)
        ]  # a copied line in near copies
        csv.writer(file).writerows([("id", "body"), *enumerate([*plain[58:], plain[70], *pairs])])
    return [str(folder / "a.txt"), str(folder / "b.csv")]


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_a_filter_is_said_to_leave_out_what_it_leaves_out(
    tmp_path: Path, dirty: list[str], size: int
) -> None:
    inputs, params = find_inputs(dirty), replace(PARAMS, shard_bytes=size)
    text = inspect_text(inputs, params, column="body", cluster=CLUSTER)
    findings = {finding["reason"]: finding for finding in text["findings"]}
    assert set(findings) == {*SETTINGS, "mojibake", "markup"}
    for reason, setting in SETTINGS.items():
        how = {"documents": "auto", "heldout": 0.1, "shard_bytes": size, **setting}
        shards = make(tmp_path / reason, *dirty, column="body", **how)  # type: ignore[arg-type]
        dropped = shards.manifest.counts.dropped
        finding = findings[reason]
        assert DroppedText(finding["lines"], finding["bytes"]) == dropped[reason]
        assert {finding["setting"]: finding["value"]} == (setting or {"": None})
        assert finding["is_on"] == (reason == "copy")
    assert text["documents"] == 167  # the lines of a.txt, since one is most of it, and records
    assert text["scripts"] == {"latin": 165, "cyrillic": 1}
    assert text["formats"] == {"text": 1, "csv": 1}
    assert findings["mojibake"]["samples"] == [{"file": "a.txt", "text": "CafÃ© is broken."}]
    (repeated,) = findings["repeated_line"]["samples"]
    assert repeated["text"] == "A & header"
    samples = findings["near_copy"]["samples"]
    (near,) = (sample for sample in samples if sample["text"].startswith("Document. "))
    assert near["repeats"]["text"].startswith("Document 3. ")
    copies = {sample["text"]: sample for sample in findings["copy"]["samples"]}
    (copied,) = (sample for text, sample in copies.items() if text.startswith("Document 58."))
    assert (copied["file"], copied["repeats"]["file"]) == ("b.csv", "a.txt")
    assert copied["repeats"]["text"] == copied["text"]


def test_what_the_settings_have_is_inspected_as_they_have_it(dirty: list[str]) -> None:
    params = replace(PARAMS, min_bytes=5, scripts=("cyrillic",))
    text = inspect_text(find_inputs(dirty), params, column="body", cluster=CLUSTER)
    findings = {finding["reason"]: finding for finding in text["findings"]}
    assert (findings["short"]["value"], findings["short"]["is_on"]) == (5, True)
    assert (findings["script"]["value"], findings["script"]["is_on"]) == (("cyrillic",), True)
    assert findings["short"]["lines"] == 0
    assert 15 < len(findings["script"]["samples"]) <= 20  # of many more, spread over the text
    assert {sample["file"] for sample in findings["script"]["samples"]} == {"a.txt", "b.csv"}


def test_a_file_that_is_one_document_is_one_whatever_its_pieces(tmp_path: Path) -> None:
    """Though of one document none can be held out."""
    (tmp_path / "a.txt").write_text("A line of text.\n" * 500)
    params = replace(PARAMS, documents="file", shard_bytes=1024)
    inputs = find_inputs([str(tmp_path / "a.txt")])
    text = inspect_text(inputs, params, column="", cluster=CLUSTER)
    assert (text["documents"], text["scripts"]) == (1, {"latin": 1})
    assert set(text["document_bytes"].values()) == {7500}
    assert {count for count, _ in text["words"].values()} >= {20, 200, 1000, 2000}
    assert {distinct for _, distinct in text["words"].values()} == {4}
    (tmp_path / "a.csv").write_text("body\n")
    inputs = find_inputs([str(tmp_path / "a.csv")])
    assert inspect_text(inputs, PARAMS, column="body", cluster=CLUSTER)["documents"] == 0


@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_held_out_documents_with_a_near_copy_in_training_are_counted(
    tmp_path: Path, size: int
) -> None:
    """Markup and how the vocabulary grows are shown too."""
    pick, twins = random.Random(5), dict[str, str]()
    for _ in range(40):
        words = [f"word{pick.randrange(10**5)}" for _ in range(60)]
        one, other = " ".join(words), " ".join([*words[:9], "<br/>", *words[10:]])
        twins |= {one: other, other: one}
    (tmp_path / "a.txt").write_text("\n".join(sorted(twins)) + "\n")
    inputs = find_inputs([str(tmp_path / "a.txt")])
    params = replace(PARAMS, heldout=0.3, documents="line", shard_bytes=size)
    made = make(tmp_path / "out", tmp_path / "a.txt", heldout=0.3, shard_bytes=size)
    shards = [made.open(entry) for entry in made.entries("heldout")]
    heldout = {" ".join(shard.tokens(k)) for shard in shards for k in range(len(shard))}
    text = inspect_text(inputs, params, column="", cluster=CLUSTER)
    in_training = sum(twins[one] not in heldout for one in heldout)
    assert text["heldout"] == {"documents": len(heldout), "in_training": in_training}
    words = " ".join(sorted(twins)).split()
    for share, count in {"1%": 48, "10%": 480, "50%": 2400, "100%": 4800}.items():
        assert text["words"][share] == (count, len(set(words[:count])))
    (markup,) = (finding for finding in text["findings"] if finding["reason"] == "markup")
    assert len(markup["samples"]) == 20 and "<br/>" in markup["samples"][0]["text"]


def test_the_command_prints_what_is_in_the_text(
    dirty: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # which is no project
    code, out, _ = elmo("inspect", *dirty, "--column", "body")
    assert code == 0
    assert "A & header" in out and "tokenize.max_symbols: 0.3" in out and "distinct in " in out
    code, out, _ = elmo("inspect", *dirty, "--column", "body", "--json")
    assert code == 0
    assert json.loads(out)["documents"] == 167
    page = tmp_path / "text.html"
    for _ in range(2):  # the second time replaces its own page
        code, out, _ = elmo("inspect", *dirty, "--column", "body", "--out", page)
        assert (code, "open " in out) == (0, True)
    html = page.read_text(encoding="utf-8")
    for words in (">a.txt</td>", "cyrillic", "A &amp; header", "tokenize.max_symbols: 0.3 (off)"):
        assert words in html
    assert html.count("data:image/png") == html.count("src=") == 1
    page.write_text("<title>My own page</title>")
    code, out, error = elmo("inspect", *dirty, "--column", "body", "--out", page)
    assert (code, out) == (1, "") and "was not written by this command" in error
    assert page.read_text() == "<title>My own page</title>"
    code, out, error = elmo("inspect", *dirty)
    assert (code, out) == (1, "")
    assert "b.csv:1: the header has no column 'text'" in error and "set --column to " in error
    (tmp_path / "one.txt").write_bytes(b"caf\xe9 " * 50)
    code, out, error = elmo("inspect", tmp_path / "one.txt")
    assert (code, out) == (1, "") and "one.txt:1: " in error
