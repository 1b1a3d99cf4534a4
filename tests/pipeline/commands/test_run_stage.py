"""A stage's command writes the few metrics that are compared, and all figures beside them."""

import json
from pathlib import Path

import yaml

from tests.pipeline.command_line import ROOT, elmo


def test_metrics_are_few_and_figures_are_all(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the cat sat\n\na dog slept\n")
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["corpus"] |= {"general": ["t.txt"], "task": ["t.txt"]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    files = ("--metrics", "metrics.json", "--figures", "figures.json")
    code, _, errors = elmo("corpus", "corpus", "--runs", "runs", *files, cwd=tmp_path)
    assert code == 0, errors
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert {"general_bytes", "task_bytes"} < figures.keys()
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics == {"bytes": figures["task_bytes"]} == {"bytes": 25}


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "figures.json").write_text("mine")
    (tmp_path / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    files = ("--figures", "figures.json")
    code, _, errors = elmo("corpus", "corpus", "--runs", "runs", *files, cwd=tmp_path)
    assert code == 1 and errors.startswith("error: figures.json: ")
    assert not (tmp_path / "corpus").exists()
