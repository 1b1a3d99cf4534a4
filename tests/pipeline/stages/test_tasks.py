"""tasks: both ways of training, their scores and curves, one run in MLflow for each."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from click.testing import CliRunner

from elmo.errors import ElmoError
from elmo.tasks import metrics
from elmo.tasks.example_files import read_examples
from elmo.tasks.kinds import KINDS
from elmo.tasks.metrics import score_order
from elmo.tasks.task import Task
from pipeline.commands.cli import cli
from pipeline.settings import params
from pipeline.settings.params import ProjectTask
from pipeline.stages import task_training, tasks
from tests.elmo.conftest import save_tiny_model
from tests.elmo.tasks.test_task import labelled, taught
from tests.files import contents
from tests.pipeline.settings.test_params import changed
from tests.pipeline.stage_runs import runs_of

ROOT = Path(__file__).resolve().parents[3]
SENTENCE = [("Ann", "B-PER"), ("Lee", "I-PER"), ("sees", "O"), ("Rome", "B-LOC")]
SETTINGS = {"epochs": 3, "hidden": 8, "characters": 0, "lr": 0.03}
PLAIN: dict[str, Any] = {
    "kind": "tagging",
    "train": "train.conll",
    "dev": "dev.conll",
    "test": "test.conll",
    "format": "",
    "columns": "",
    "scheme": "",
    "seeds": 2,
    "baseline": True,
    "settings": SETTINGS,
}


@pytest.fixture
def folder(tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model and three labelled files in the current folder, and a database of its own."""
    save_tiny_model(tmp_path / "model")
    for k, name in enumerate(("train", "dev", "test")):
        words = SENTENCE[k:] + SENTENCE[:k]
        words = [(w, t.replace("I-", "B-")) for w, t in words]
        (tmp_path / f"{name}.conll").write_text("".join(f"{w}\t{t}\n" for w, t in words))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlflow.db").write_bytes(empty_database.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    return tmp_path


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    return tasks.run(
        "ner",
        folder / "model",
        folder / "out",
        ProjectTask(**(PLAIN | changes)),
        curve=folder / "curves" / "ner.tsv",
        picture=folder / "curves" / "ner.png",
        work=folder / "runs" / "tasks",
        device="cpu",
    )


@pytest.mark.slow
def test_with_and_without_elmo(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = run(folder)
    gains = ["gain", "gain_low", "gain_high", "gain_test_low", "gain_test_high"]
    simple = ["majority", "features", "static"]
    assert list(figures) == ["elmo", "baseline", *simple, "f1", *gains, "seeds", "examples"]
    assert figures["majority"].keys() == {"f1", "precision", "recall", "accuracy"}
    assert figures["gain_low"] <= figures["gain"] <= figures["gain_high"]
    assert figures["gain_test_low"] == figures["gain_test_high"]  # of one example
    assert figures["f1"] == figures["elmo"]["f1"]
    assert figures["gain"] == pytest.approx(figures["elmo"]["f1"] - figures["baseline"]["f1"])
    assert figures["examples"] == {"train": 1, "dev": 1, "test": 1}
    said = tasks.summary(figures)
    assert said.startswith("f1 ") and " by the most frequent label, " in said
    assert "over 2 seeds" in said and "over 1 test examples" in said
    assert Task.load(folder / "out" / "baseline", seed=1).record.bilm is None
    lines = (folder / "curves" / "ner.tsv").read_text().splitlines()
    assert lines[0] == "epoch\telmo\tbaseline" and len(lines) == 4
    columns = list(zip(*(map(float, line.split("\t")) for line in lines[1:]), strict=True))
    assert all(list(column) == sorted(column) for column in columns)
    linear = Task.load(folder / "out" / "elmo").record.linear.values()
    best = sum(shares.network_score for shares in linear) / len(linear)
    assert columns[1][-1] == pytest.approx(best, abs=1e-5)  # not another of the scores
    logged = [one.data for one in runs_of("tasks")]
    assert sorted(data.params["settings.elmo"] for data in logged) == ["frozen", "none"]
    for data in logged:
        arm = figures["elmo" if data.params["settings.elmo"] == "frozen" else "baseline"]
        assert data.metrics["test.f1"] == pytest.approx(arm["f1"], abs=1e-5)
        assert {
            f"{name}/seed-{k}" for name in ("test.f1", "loss") for k in (0, 1)
        } <= data.metrics.keys()
    before = contents(folder / "out")
    run(folder)
    assert contents(folder / "out") == before


def test_f1_is_said_beside_f1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task's file has its scores by name, accuracy first."""
    changes = {"lr": 0.0, "features": 8}
    out = taught(
        "tagging", labelled("tagging", 40), labelled("tagging", 20, 1), tmp_path, changes=changes
    )
    scores = Task.load(out).record.scores["0"]
    assert round(scores["f1"], 4) != round(scores["accuracy"], 4)
    task_training.say_training_remarks(out)
    said = "".join(capsys.readouterr())
    assert f"{scores['f1']:.4f} by " in said


def test_one_seed_has_no_interval_over_seeds() -> None:
    figures: dict[str, Any] = {
        "elmo": {"f1": 0.6},
        "baseline": {"f1": 0.5},
        "gain": 0.1,
        "seeds": 1,
    }
    figures |= {"gain_low": None, "gain_high": None, "gain_test_low": 0.05, "gain_test_high": 0.2}
    said = tasks.summary(figures | {"examples": {"test": 150}})
    assert said.endswith(
        "; ELMo's gain +0.100, 95% interval over 150 test examples +0.050 to +0.200"
    )
    assert "no better" not in said
    figures |= {"majority": {"f1": 0.2}, "features": {"f1": 0.6}, "examples": {"test": 150}}
    assert "; no better than a simple baseline, so the score means little; " in tasks.summary(
        figures
    )


@pytest.mark.slow
def test_an_arm_that_is_done_is_not_trained_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends between the two resumes with the second."""
    from elmo.tasks import task

    trained, train = [], task.train_task

    def once(*given: Any, settings: Any, **named: Any) -> Any:
        trained.append(settings.elmo)
        if trained == ["frozen", "none"]:
            raise KeyboardInterrupt
        return train(*given, settings=settings, **named)

    monkeypatch.setattr(task, "train_task", once)
    with pytest.raises(KeyboardInterrupt):
        run(folder, seeds=1)
    assert not (folder / "out").exists()
    run(folder, seeds=1)
    assert trained == ["frozen", "none", "none"]
    assert len(runs_of("tasks")) == 2


@pytest.mark.slow
def test_without_a_baseline_and_without_elmo(folder: Path) -> None:
    alone = run(folder, seeds=1, baseline=False)
    assert "baseline" not in alone and "gain" not in alone
    (folder / "other").mkdir()
    (folder / "out").rename(folder / "other" / "out")
    left = run(folder, seeds=1, settings=SETTINGS | {"elmo": "none"})
    assert "elmo" not in left and "without ELMo" in tasks.summary(left)


def test_the_command_of_the_stage(folder: Path) -> None:
    settings = yaml.safe_load((ROOT / "params.yaml").read_text())
    settings["tasks"] = {"ner": PLAIN | {"seeds": 1, "baseline": False}}
    Path("params.yaml").write_text(yaml.safe_dump(settings))
    words = "model out --curve c.tsv --picture c.png --work work/tasks".split()
    files = "--metrics m.json --numbers f.json".split()
    done = CliRunner().invoke(cli, ["tasks", "ner", *words, *files])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("tasks ner: f1 ")
    figures = json.loads(Path("f.json").read_text())
    assert figures["examples"]["test"] == 1
    assert json.loads(Path("m.json").read_text()) == {"f1_higher_better": figures["elmo"]["f1"]}
    other = CliRunner().invoke(cli, ["tasks", "pos", *words])
    assert str(other.exception) == "tasks.pos: no such task in params.yaml; it has ner"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks.code.kind=parsing", "tasks.code.kind must be one of tagging"),
        ("tasks.code.dev=data/labels/test.jsonl", "tasks.code.train, dev and test must be three"),
        (
            "tasks.code.settings.epochs=0",
            "tasks.code.settings: epochs must be a whole number of at",
        ),
        ("tasks.code.settings.epoch=2", "tasks.code.settings: no setting 'epoch'; did you"),
        ("tasks.code.settings.layers=top", "tasks.code.settings: layers must be a list or null"),
        ("tasks.code.settings=3", "tasks.code.settings must be a section of names"),
        ("tasks.a/b={}", "tasks.a/b must be a name of at most 64 letters"),
        ("tasks=[]", "tasks must be a section of names"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: str, message: str) -> None:
    key, _, value = change.partition("=")
    with pytest.raises(ElmoError, match=message):
        params.load(changed(tmp_path, key, yaml.safe_load(value)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_every_kind_is_read(kind: str, tmp_path: Path) -> None:
    examples = KINDS[kind].examples
    lines = [json.dumps(item) for item in examples]
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    assert read_examples(kind, tmp_path / "items.jsonl", labelled=False).examples


def test_labels_that_training_lacks_are_said(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No such label can be predicted: each counts as wrong, and nothing else tells."""
    for name in ("dev", "test"):
        (folder / f"{name}.conll").write_text("Ann\tB-PER\nGate\tB-FAC\nLee\tB-ORG\n")
    said = "{}.conll: 2 of its labels are not in the training file: FAC, ORG\n"
    words = (
        "--train train.conll --dev dev.conll --out trained --without-elmo --set epochs=1".split()
    )
    done = CliRunner().invoke(cli, ["task", "train", "tagging", *words])
    assert said.format("dev") in done.output, done.output
    done = CliRunner().invoke(cli, ["task", "evaluate", "trained", "--data", "test.conll"])
    assert said.format("test") in done.output
    done = CliRunner().invoke(
        cli, ["task", "evaluate", "trained", "--data", "test.conll", "--json"]
    )
    assert json.loads(done.stdout) and said.format("test") in done.stderr
    run(folder, seeds=1, settings={**SETTINGS, "elmo": "none", "epochs": 1})
    printed = capfd.readouterr().err
    assert said.format("dev") in printed and said.format("test") in printed


def test_a_column_names_the_first_score_of_every_metric() -> None:
    """Else `dvc metrics show` would lack it."""
    for metric in get_args(metrics.Metric):
        scores = metrics.Tally(metric, [(1.0,) * metrics.MAX_COUNTS]).scores()
        assert f"{min(scores, key=score_order)}_higher_better" in tasks.STAGE.figure_by_metric
