"""`elmo task`: what is printed, what is written, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from elmo.errors import ElmoError, NotFound
from pipeline.commands.cli import cli
from pipeline.commands.task import _parse_settings
from pipeline.stages.task_training import source_digest
from tests.elmo.conftest import save_tiny_model

SENTENCES = [
    [("Ann", "B-PER"), ("Lee", "I-PER"), ("sees", "O"), ("Rome", "B-LOC")],
    [("Rome", "B-LOC"), ("sleeps", "O")],
    [("He", "O"), ("sees", "O"), ("Ann", "B-PER")],
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model and a labelled file in the current folder."""
    save_tiny_model(tmp_path / "model")
    blocks = ["".join(f"{w}\t{t}\n" for w, t in sentence) for sentence in SENTENCES]
    (tmp_path / "ner.conll").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: Any) -> str:
    done = CliRunner().invoke(cli, ["task", *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


TRAIN = "train tagging --train ner.conll --dev ner.conll --out ner".split()
TRAIN += "--set epochs=60 --set hidden=8 --set lr=0.03 --set patience=60".split()


@pytest.mark.slow
def test_train_evaluate_and_predict(folder: Path) -> None:
    done = CliRunner().invoke(cli, ["task", *TRAIN, "--model", "model", "--seeds", "2"])
    lines = done.stdout.splitlines()
    assert lines[0] == "ner.conll: spans 4, sentences 3, tokens 9"
    assert done.stderr.startswith("  seed 0 epoch 1: loss ")
    assert lines[-2].startswith("task train: ner: f1 1.0000, accuracy 1.0000, precision 1.0000, ")
    assert re.match("on dev: f1 1.000 with ELMo, .* label, .* features, .* by layer 0", lines[-1])
    figures = json.loads(run("evaluate", "ner", "--data", "ner.conll", "--json"))
    assert figures["f1"] == 1.0 and figures["f1_sd"] == 0.0
    assert figures["seeds"]["1"]["recall"] == 1.0
    assert figures["labels"]["PER"] == {"f1": 1, "precision": 1, "recall": 1, "support": 4}
    shown = run("evaluate", "ner", "--data", "ner.conll")
    assert "LOC" in shown and "macro" in shown and "ner.conll: spans 4" in shown
    (folder / "text.txt").write_text("Ann  Lee sees Rome\n")
    predicted = json.loads(run("predict", "ner", "--input", "text.txt"))
    scores = predicted.pop("scores")
    for span in predicted["spans"]:
        assert span.pop("score") == min(scores[span["start"] : span["stop"]]) > 0
    assert predicted == {
        "source": "text.txt:1",
        "tokens": ["Ann", "Lee", "sees", "Rome"],
        "tags": ["B-PER", "I-PER", "O", "B-LOC"],
        "spans": [
            {"start": 0, "stop": 2, "label": "PER", "text": "Ann  Lee", "characters": [0, 8]},
            {"start": 3, "stop": 4, "label": "LOC", "text": "Rome", "characters": [14, 18]},
        ],
    }
    said = run("predict", "ner", "--input", "ner.conll", "--as", "conll").splitlines()
    assert said[:6] == [
        *(f"{word} {tag} {tag}" for word, tag in SENTENCES[0]),
        "",
        "Rome B-LOC B-LOC",
    ]
    assert {p.name for p in Path("ner").iterdir()} == {
        "model",
        "seed-0",
        "seed-1",
        "task.json",
        "words.json",
    }


def test_what_cannot_be_predicted_is_counted(folder: Path) -> None:
    (folder / "stars.jsonl").write_text(
        '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n'
    )
    small = "--out stars --without-elmo --set epochs=1 --set hidden=4".split()
    run("train", "classification", "--train", "stars.jsonl", "--dev", "stars.jsonl", *small)
    shown = run("evaluate", "stars", "--data", "stars.jsonl")
    assert "one row per label, one column per prediction" in shown and "calibration error" in shown
    (folder / "new.tsv").write_text("text\ngood\n \nbad\n")
    done = CliRunner().invoke(cli, ["task", "predict", "stars", "--input", "new.tsv"])
    assert done.stderr == "new.tsv: dropped empty 1\n"
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["source"] for line in lines] == ["new.tsv:2", "new.tsv:4"]
    assert {line["label"] for line in lines} <= {"0", "1"}
    with pytest.raises(ElmoError, match="--as squad: .*questions .*class"):
        run("predict", "stars", "--input", "new.tsv", "--as", "squad")


def test_a_folder_of_labelled_files_is_another_where_one_is_renamed(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("x O\n")
    before = source_digest("train", tmp_path)
    (tmp_path / "a.conll").rename(tmp_path / "b.conll")
    assert source_digest("train", tmp_path) != before


def test_the_baseline_needs_no_model(folder: Path) -> None:
    assert re.search(
        "on dev: f1 1.000 without .* features(; no better.*)?$", run(*TRAIN, "--without-elmo")
    )
    assert not Path("ner/model").exists()
    assert json.loads(run("evaluate", "ner", "--data", "ner.conll", "--json"))["f1"] == 1.0


def test_a_learning_curve_learns_from_a_quarter_and_from_half(folder: Path) -> None:
    rows = [f"{word}{k}\t{word}\n" for k in range(25) for word in ("good", "bad")]
    (folder / "stars.tsv").write_text("text\tlabel\n" + "".join(rows))
    words = "train classification --train stars.tsv --dev stars.tsv --out stars".split()
    words += "--without-elmo --curve --set epochs=1 --set hidden=4".split()
    done = CliRunner().invoke(cli, ["task", *words])
    *_, whole, _, half, quarter = done.stdout.splitlines()
    assert "\n  12 of 50 examples: seed 0 epoch 1: loss " in done.stderr
    assert whole.startswith("task train: stars: accuracy ")
    assert half.startswith("with 25 of 50 examples: accuracy ")
    assert quarter.startswith("with 12 of 50 examples: accuracy ")
    (folder / "stars.tsv").write_text("text\tlabel\n" + "".join(rows[:39]))
    with pytest.raises(
        ElmoError, match="--curve: needs at least 40 examples to train on, found 39"
    ):
        run(*words, "--overwrite")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=5e-05", 5e-05),
        ("lr=6e-3", 0.006),
        ("lr=.5", 0.5),
        ("epochs=+1e1", 10),
        ("layers=[0, 2]", (0, 2)),
        ("layers=0", (0,)),
        ("layer_norm=~", None),
        ("word_file=a: b", "a: b"),
    ],
)
def test_set_reads_values_as_yaml_does(text: str, value: Any) -> None:
    words = ("words=file",) if "word_file" in text else ()
    settings = _parse_settings("classification", (*words, text), without_elmo=False)
    assert getattr(settings, text.partition("=")[0]) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--model is missing; pass a model folder, or pass --without-elmo"),
        (["--model", "none"], "none: no such model folder"),
        (["--without-elmo", "--store", "s"], "--store"),
        (
            ["--model", "model", "--work", "ner/runs"],
            "--work ner/runs: must be outside ner; choose another folder",
        ),
        (["--without-elmo", "--set", "elmo=frozen"], "and --set elmo=frozen: leave out one"),
        (["--model", "model", "--set", "layers=[0, 7]"], "layers must be among 0 to 2, found 7"),
        (["--model", "model", "--set", "layers=" + "[" * 3000], "layers must be a list or null"),
        (["--model", "model", "--set", "layers=&a [*a]"], "layers must be a list or null"),
        (["--model", "model", "--set", "dropout"], "--set must be NAME=VALUE, found 'dropout'"),
        (["--model", "model", "--columns", "tag=9"], "ner.conll:1: has 2 columns, so no column 9"),
        (["--model", "model", "--scheme", "bioes"], "ner.conll:3: tag O follows I-PER"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    folder: Path, words: list[Any], message: str
) -> None:
    with pytest.raises(ElmoError) as refused:
        run(*TRAIN, *words)
    assert message in str(refused.value)
    assert not Path("ner").exists()


def test_a_tag_that_fits_no_scheme_is_not_taken_for_plain_tags(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.conll").write_text((folder / "ner.conll").read_text().replace("B-LOC", "b"))
    words = ["train", "tagging", "--train", "bad.conll", "--dev", "ner.conll", "--out", "new"]
    with pytest.raises(ElmoError, match="^bad.conll:4: tag 'b' fits no scheme"):
        run(*words, "--without-elmo")
    with pytest.raises(ElmoError, match="^bad.conll:4: "):
        run(*words, "--without-elmo", "--scheme", "bio")
    (folder / "bad.conll").write_text("Ann\tPER\nLee\tPER\nsees\tO\n")
    capsys.readouterr()
    with pytest.raises(ElmoError, match=r"^ner.conll: the tags mark spans \(bio\), unlike"):
        run(*words, "--without-elmo")
    assert "not in the training file" not in capsys.readouterr().err
    words[5] = "bad.conll"
    done = CliRunner().invoke(cli, ["task", *words, "--without-elmo", "--set", "epochs=1"])
    assert "bad.conll: the tags mark no spans" in done.stderr


def test_a_trained_task_is_replaced_where_that_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without being asked nothing is read; what was interrupted goes on by the same command."""
    small = [word.replace("epochs=60", "epochs=1") for word in [*TRAIN, "--without-elmo"]]
    run(*small)
    first = Path("ner/task.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("elmo.tasks.example_files.read_examples", None)
        with pytest.raises(ElmoError, match="^ner: already exists; .*--overwrite$"):
            run(*small)
    again = [word.replace("hidden=8", "hidden=4") for word in [*small, "--overwrite"]]
    with monkeypatch.context() as patch, pytest.raises(SystemExit):  # as click ends it
        patch.setattr("elmo.tasks.task.write_json", Mock(side_effect=KeyboardInterrupt))
        run(*again)
    assert Path("ner/task.json").read_bytes() == first and list(Path("work/tasks").iterdir())
    monkeypatch.setattr("elmo.tasks.train._TaskTraining.train_epoch", None)  # it was whole
    run(*again)
    assert json.loads(Path("ner/task.json").read_text())["settings"]["hidden"] == 4


def test_the_task_that_is_meant_is_named(folder: Path) -> None:
    (folder / "models" / "ner").mkdir(parents=True)
    (folder / "models" / "ner" / "task.json").write_text("{}")
    (folder / "models" / "nerrr").mkdir()  # no task
    message = r"^models/nerr: no such task folder; did you mean 'ner'\?$"
    for words in (["evaluate", "models/nerr", "--data"], ["predict", "models/nerr", "--input"]):
        with pytest.raises(NotFound, match=message):
            run(*words, "ner.conll")
    with pytest.raises(NotFound, match=r"^other: no such task folder; name another$"):
        run("evaluate", "other", "--data", "ner.conll")
