"""What is measured on toy data whose answer is known, and what a page shows of it."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from elmo.data.tokenizer import Tokenization
from elmo.errors import ElmoError
from elmo.store import model_digest
from pipeline.commands.cli import cli
from research import finding, page
from research.commands import findings
from research.compare import epochs_to_reach
from research.finding import Finding, Row
from tests.elmo.conftest import make_store, save_tiny_model

ROOT = Path(__file__).resolve().parents[2]
SEMCOR = "".join(
    f"# sent_id = b.d{d}.s1\n1\tthe\tDT\t_\t_\t_\n"
    f"2\t{word}\tNN\t{word}\t{word}%1:04:0{d % 2}::\t{1 + d % 2}\n"
    f"3\t{after}\tVB\t_\t_\t_\n\n"
    for d in range(20)  # of which 0, 4, 16, 18 and 19 are held out: both senses
    for word, after in (("gift", ("has", "for")[d % 2]), ("zoo", ("he", "a")[d % 2]))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, its store, and labelled files."""
    home = tmp_path_factory.mktemp("findings")
    save_tiny_model(home / "model")
    sentences = [["the", "gift", "has"], ["a", "gift", "for"], ["he", "has", "the", "zoo"]]
    make_store(home, sentences, home / "model")
    (home / "semcor.tsv").write_text(SEMCOR)
    for k, name in enumerate(("train", "dev", "test")):
        tags = {"the": "DET", "a": "DET", "gift": "NOUN", "zoo": "NOUN", "has": "VERB"}
        texts = sentences[k:] + sentences[:k]
        lines = ["".join(f"{w}\t{tags.get(w, 'X')}\n" for w in s) for s in texts]
        (home / f"{name}.conll").write_text("\n".join(lines))
    return home


def measure(folder: Path, *words: Any) -> tuple[Finding, str]:
    out = folder / f"{'-'.join(map(str, words[:2]))}.json"
    done = CliRunner().invoke(findings, [*map(str, words), "--out", str(out)])
    if done.exception is not None:
        raise done.exception
    assert out.with_suffix(".png").stat().st_size > 2000
    return finding.read_finding(out), done.stdout


def task(folder: Path) -> list[str]:
    files = [
        word for n in ("train", "dev", "test") for word in (f"--{n}", str(folder / n) + ".conll")
    ]
    small = ["epochs=2", "hidden=4", "characters=0", "word_dim=4", "min_count=1"]
    return [
        *files,
        *("--model", str(folder / "model"), "--work", str(folder / "runs"), "--seeds", "2"),
        *(word for setting in small for word in ("--set", setting)),
    ]


def test_layers_with_their_weights_and_the_updates_to_the_baseline(folder: Path) -> None:
    found, printed = measure(folder, "compare", "tagging", "--ways", "layers", *task(folder))
    rows = {row.name: row for row in found.rows}
    assert list(rows) == [
        "without ELMo",
        "last layer",
        "average",
        "learned mix, λ = 1",
        "learned mix, λ = 0.001",
    ]
    weights = [{k: v for k, v in row.extra.items() if k.startswith("weight")} for row in found.rows]
    assert weights[0] == {} and weights[1] == {"weight_layer_2": 1.0}
    assert list(weights[2].values()) == pytest.approx([1 / 3] * 3)
    assert sum(weights[4].values()) == pytest.approx(1) and weights[4] != weights[2]
    for row in found.rows:
        assert row.mean == pytest.approx(np.mean(list(row.scores.values())))
        assert row.low is not None and row.high is not None and row.low <= row.mean <= row.high
    baseline, average = rows["without ELMo"], rows["average"]
    assert baseline.extra["updates_to_baseline"] in (1.0, 1.5, 2.0)
    gains = [average.scores[seed] - baseline.scores[seed] for seed in ("0", "1")]
    assert average.extra["gain"] == pytest.approx(np.mean(gains)) and "gain" not in baseline.extra
    assert average.extra["gain_low"] <= average.extra["gain"] <= average.extra["gain_high"]
    assert all(row.extra["minutes"] > 0 for row in found.rows)
    assert found.examples["epoch_tokens"] == 10
    assert (found.kind, found.metric, found.seeds) == ("layers", "accuracy", [0, 1])
    assert set(found.data) == {"train", "dev", "test"} and "average: accuracy" in printed


def test_positions_where_elmo_enters(folder: Path) -> None:
    found, _ = measure(folder, "compare", "tagging", "--ways", "positions", *task(folder))
    assert [row.name for row in found.rows] == ["input", "input and output", "output"]


def test_several_models_read_the_same_sentences(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_tiny_model(other, seed=5)
    words = ["models", "tagging", *task(folder), "--other"]
    found, _ = measure(folder, *words, other)
    first = folder / "model"
    names = ["without ELMo", f"with ELMo, {first}", f"with ELMo, {other}"]
    assert [row.name for row in found.rows] == names
    assert found.model == model_digest(first) != model_digest(other)
    assert found.data[f"other {other}"] == model_digest(other)
    learned = [row.extra for row in found.rows[1:]]
    assert all("gain" in extra for extra in learned)
    assert learned[0]["weight_layer_1"] != learned[1]["weight_layer_1"]
    alone, _ = measure(folder, "compare", "tagging", *task(folder))
    assert [row.scores for row in alone.rows] == [row.scores for row in found.rows[:2]]
    with pytest.raises(ElmoError, match=f"--other {first}: named twice"):
        measure(folder, *words, first)
    save_tiny_model(tmp_path / "third", tokenizer=Tokenization("unicode"))
    with pytest.raises(ElmoError, match="was cut by unicode, that of .* by whitespace"):
        measure(folder, *words, tmp_path / "third")


def test_a_share_holds_the_smaller_one_and_what_is_done_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = measure(folder, "labels", "tagging", "--shares", "30,100", *task(folder))
    assert [row.extra["train_examples"] for row in found.rows] == [1, 1, 3, 3]
    assert [row.name for row in found.rows][:2] == ["without ELMo, 0.3", "with ELMo, 0.3"]
    monkeypatch.setattr("elmo.tasks.task.train_task", Mock(side_effect=AssertionError("again")))
    again, _ = measure(folder, "labels", "tagging", "--shares", "30,100", *task(folder))
    assert again.rows == found.rows


@pytest.mark.parametrize("kind", ["tagging", "classification"])
def test_every_way_to_learn_a_few_labels_is_scored_and_kept(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that the words tell: features learn them, the most frequent label does not."""
    things = [f"{word}{k}" for k in range(8) for word in ("gift", "zoo")]
    if kind == "tagging":
        lines = [f"the\tDET\n{t}\t{'NOUN' if t[0] == 'g' else 'NAME'}\n\n" for t in things]
    else:
        lines = ["label\ttext\n", *(f"{t[:-1]}\tthe {t[:-1]}\n" for t in things)]
    file = tmp_path / ("some.conll" if kind == "tagging" else "some.tsv")
    file.write_text("".join(lines))
    words = ["few", kind, "--train", file, "--test", file, "--model", folder / "model"]
    words += ["--counts", "10,12", "--draws", 2, "--work", tmp_path / "work"]
    found, _ = measure(tmp_path, *words)
    names = [row.name.rpartition(", ")[0] for row in found.rows]
    assert len(names) == 12 and names[:6] == names[6:] and len(set(names)) == 6
    assert [row.extra["examples"] for row in found.rows] == [10] * 6 + [12] * 6
    vectors = [f"{t} {int(t[0] == 'g')} {int(t[0] == 'z')}\n" for t in ("gift", "zoo", *things)]
    (tmp_path / "words.vec").write_text("".join(["18 2\n", *vectors]))
    wider, _ = measure(tmp_path, *words, f"--static=own={tmp_path / 'words.vec'}")
    rows = {row.name: row for row in wider.rows}
    assert rows.keys() - {row.name for row in found.rows} == {
        f"{way}, {k}" for k in (10, 12) for way in ("own, by hand", "elmo task train, own")
    }
    assert rows["elmo task train, 12"] in found.rows  # taken from before
    if kind == "classification":
        assert rows["own, by hand, 12"].extra["highest"] == 1.0
    rows = {row.name: row for row in found.rows}
    assert rows["features, by hand, 12"].mean == 1.0 > rows["most frequent label, 12"].mean
    for row in found.rows:
        assert row.extra["lowest"] == min(row.scores.values())
        assert 0 <= row.mean <= row.extra["highest"] == max(row.scores.values())
        assert row.extra["seconds"] >= 0 and len(row.scores) == 2
    monkeypatch.setattr("research.few._score_ways", Mock(side_effect=AssertionError("again")))
    again, _ = measure(tmp_path, *words)
    assert again.rows == found.rows
    with pytest.raises(ElmoError, match="has 16 labelled examples; lower --counts"):
        measure(tmp_path, *words, "--counts", "17")


def test_word_senses_of_documents_held_out(folder: Path) -> None:
    """The sense follows from the next word, which layer 0 does not see."""
    words = ["senses", "--model", folder / "model", "--train", folder / "semcor.tsv"]
    found, _ = measure(folder, *words)
    rows = {row.name: row.mean for row in found.rows}
    assert list(rows)[:2] == ["first sense", "most frequent"]
    assert rows["layer 1"] == 1.0 and rows["layer 0"] == pytest.approx(0.8)
    (gain,) = (row.extra for row in found.rows if row.name == "layer 1")
    assert 0 <= gain["above_low"] < gain["above"] < gain["above_high"] <= 0.5
    assert gain["above"] == pytest.approx(0.2)
    assert found.examples["train"] + found.examples["test"] == 40
    assert found.rows[0].extra["fallback"] == 0
    (folder / "senses.vec").write_text("2 2\ngift 1 0\nzoo 0 1\n")
    beside, _ = measure(folder, *words, f"--static=words={folder / 'senses.vec'}")
    assert [row.name for row in beside.rows[1:4]] == ["most frequent", "words", "layer 0"]
    assert beside.rows[2].mean == rows["layer 0"]  # neither knows the next word
    assert beside.rows[3:] == found.rows[2:] and "static words" in beside.data


def test_a_probe_of_tags(folder: Path) -> None:
    files = ["--train", folder / "train.conll", "--test", folder / "test.conll"]
    found, _ = measure(folder, "probe", "--model", folder / "model", *files)
    assert [row.mean for row in found.rows] == [1.0] * 4
    words = "the 1 0\na 1 0.1\ngift 0 1\nhas 5 5\nfor 3 -9\nhe 3 -8\nzoo 0 1\n"
    (folder / "words.vec").write_text("7 2\n" + words)
    static = [f"--static=static={folder / 'words.vec'}"]
    beside, _ = measure(folder, "probe", "--model", folder / "model", *files, *static)
    assert [row.name for row in beside.rows][:2] == ["most frequent tag of the type", "static"]
    assert beside.rows[1].mean == pytest.approx(1.0) and beside.data.keys() >= {"static static"}
    (folder / "words.vec").write_text(words)
    with pytest.raises(ElmoError, match=r"words\.vec:1: must be the number of words"):
        measure(folder, "probe", "--model", folder / "model", *files, *static)


def test_neighbors_in_context_beside_static_ones(folder: Path) -> None:
    (folder / "queries.txt").write_text("he has a [gift]\n")
    (folder / "static.txt").write_text("gift 1 0\nzoo 0.9 0.1\nhas 0 1\n")
    options = ["--model", folder / "model", "--vectors", folder / "static.txt", "-k", 2]
    words = ["neighbors", folder / "store", folder / "queries.txt", *options]
    out = folder / "neighbors.json"
    done = CliRunner().invoke(findings, [*map(str, words), "--out", str(out)])
    assert done.exit_code == 0, done.exception
    both = finding.read_finding(out).neighbors["he has a [gift]"]
    assert both["static"] == ["zoo", "has"] and len(both["in context"]) == 2
    words.append("--same-word")
    done = CliRunner().invoke(findings, [*map(str, words), "--out", str(out)])
    assert done.exit_code == 0, done.exception
    of_it = finding.read_finding(out)
    in_context = of_it.neighbors["he has a [gift]"]["in context"]
    assert in_context and all("[gift]" in one for one in in_context)
    assert of_it.metric == "cosine of the nearest" and 0 < of_it.rows[0].mean <= 1


def test_a_word_that_the_store_lacks_has_no_neighbors_of_the_same_word(folder: Path) -> None:
    store = ["neighbors", str(folder / "store"), "--model", str(folder / "model"), "--same-word"]
    done = CliRunner().invoke(cli, [*store, "has he a [gift] ?"])
    assert done.exit_code == 0 and done.stdout.count("[gift]") == 2
    refused = CliRunner().invoke(cli, [*store, "he has a [cat]"])
    assert isinstance(refused.exception, ElmoError)
    assert str(refused.exception).endswith("store: has no other token 'cat'; leave out --same-word")


def test_intervals() -> None:
    """Sentences are drawn whole: four tokens of each, or one."""
    right = np.array([True, False, True, True] * 50)
    sampled = finding.bootstrap_row("x", right, [4] * 50)
    assert sampled.low == sampled.mean == sampled.high == 0.75
    apart = finding.bootstrap_row("x", right, [1] * 200)
    assert apart.low == pytest.approx(0.75 - 1.96 * (0.75 * 0.25 / 200) ** 0.5, abs=0.02)


def test_epochs_to_reach_a_score() -> None:
    assert epochs_to_reach([[0.1, 0.5, 0.6], [0.5, 0.6, 0.6]], [0.5, 0.4]) == 1.5
    assert epochs_to_reach([[0.1, 0.4], [0.5, 0.6]], [0.5, 0.5]) is None


PAGE = (
    "# Results\n\nSaid.\n\n<!-- finding a -->\n<!-- end -->\n\n"
    "<!-- finding b -->\nold\n<!-- end -->\n"
)


def test_a_page_is_redrawn_and_says_what_was_not_measured(tmp_path: Path) -> None:
    extra = {"weight_layer_0": 0.25, "gain": 0.125, "gain_low": -0.01, "gain_high": 0.26}
    rows = [
        Row("without ELMo", 0.375, extra={"minutes": 1.5, "updates_to_baseline": 342.0}),
        Row("with | ELMo", 0.5, 0.4, 0.6, {"0": 0.5}, extra),
    ]
    settings = {"batch_size": 32, "epochs": 10, "patience": 2}  # 38 updates in an epoch
    made = Finding(
        1,
        "elmo",
        "tagging",
        "f1",
        "python -m research compare",
        "a" * 64,
        {},
        {"train": 1200},
        [0],
        settings,
        rows,
    )
    results, out = tmp_path / "results", tmp_path / "results.md"
    results.mkdir()
    finding.write_finding(results / "a.json", made)
    out.write_text(PAGE)
    assert page.redraw_tables(results, out) == (1, 1)
    assert "![a]" not in out.read_text()  # no picture lies beside it
    (results / "a.png").touch()
    assert page.redraw_tables(results, out) == (1, 1)
    text = out.read_text()
    assert "\n\n![a](results/a.png)\n<!-- end -->" in text
    assert "| without ELMo | 0.375 |  |  |  | 342 | 1.50 |" in text
    assert "| 0.500 | 0.400 to 0.600 | 0.25 | +0.125 (-0.010 to +0.260) |  |  |" in text
    assert re.search("Unfinished .*: without ELMo[.]", text)
    assert "train 1,200; seeds 0; model aaaaaaaaaaaa." in text
    assert "<!-- finding b -->\nnot measured yet\n<!-- end -->\n" in text
    assert page.redraw_tables(results, out) == (1, 1) and out.read_text() == text
    finding.write_finding(
        results / "a.json", msgspec.structs.replace(made, settings=settings | {"epochs": 20})
    )
    assert page.redraw_tables(results, out) == (1, 1) and "Unfinished" not in out.read_text()
    (results / "a.json").rename(results / "c.json")
    with pytest.raises(ElmoError, match="c.json: .* has no mark <!-- finding c -->"):
        page.redraw_tables(results, out)
    (results / "c.json").write_text(json.dumps({"format": 2}))
    out.write_text(PAGE.replace("finding b", "finding c"))
    with pytest.raises(ElmoError, match="c.json"):
        page.redraw_tables(results, out)


def test_the_project_s_own_page_can_be_redrawn(tmp_path: Path) -> None:
    """It shows nothing that is not in a file, and each of its commands exists."""
    text = (ROOT / "research" / "README.md").read_text(encoding="utf-8")
    (tmp_path / "results").symlink_to(ROOT / "research" / "results")
    copy = tmp_path / "README.md"
    copy.write_text(text, encoding="utf-8")
    measured, left = page.redraw_tables(tmp_path / "results", copy)
    assert copy.read_text(encoding="utf-8") == text
    assert measured + left == text.count("<!-- finding ")
    for command in re.findall(r"`python -m research (\w+)", text):
        assert command in findings.commands


def test_a_folder_of_findings_that_is_not_there_empties_no_table(tmp_path: Path) -> None:
    out = tmp_path / "page.md"
    out.write_text("<!-- finding one -->\nmeasured\n<!-- end -->\n")
    with pytest.raises(ElmoError, match="nowhere: no such folder"):
        page.redraw_tables(tmp_path / "nowhere", out)
    with pytest.raises(ElmoError, match="holds no findings"):
        page.redraw_tables(tmp_path, out)
    assert "measured" in out.read_text()
