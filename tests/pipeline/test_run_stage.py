"""A stage's command writes the few metrics that people compare, and all figures beside them."""

import json
from pathlib import Path

import pytest
import yaml

from tests.pipeline.command_line import ROOT, elmo

SHARDS = ("corpus", "general", "shards", "--work", "work")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "t.txt").write_text("".join(f"the cat sat {k}\n\n" for k in range(50)))
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["corpus"] |= {"general": ["t.txt"], "domain": ["t.txt"]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    code, _, errors = elmo("corpus", "corpus", "--work", "work", cwd=tmp_path)
    assert code == 0, errors
    return tmp_path


def test_metrics_are_few_and_figures_are_all(project: Path) -> None:
    files = ("--metrics", "metrics.json", "--numbers", "figures.json")
    code, _, errors = elmo("tokenize", *SHARDS, *files, cwd=project)
    assert code == 0, errors
    figures = json.loads((project / "figures.json").read_text())
    assert {"documents": 50, "sentences": 50, "tokens": 200}.items() <= figures.items()
    assert json.loads((project / "metrics.json").read_text()) == {"tokens": 200}


def test_one_file_for_both_figures_is_refused_first(project: Path) -> None:
    files = ("--numbers", "both", "--metrics", "both")
    code, _, errors = elmo("tokenize", *SHARDS, *files, cwd=project)
    assert code == 1 and "error: both: overlaps both, another output; choose another" in errors
    assert not (project / "shards").exists()
