"""Files of settings that are damaged, and variables that are out of range."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.settings.cluster import Cluster
from tests.hostile.harness import DAMAGE, paired, refused
from tests.pipeline.command_line import ROOT

SETTINGS = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
CLUSTER = [field.name for field in fields(Cluster)]
CORPUS = ["corpus", "out", "--work", "work", "--params", "broken.yaml"]


def broken(folder: Path, value: Any) -> None:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    (folder / "broken.yaml").write_text(text)


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files_of_settings(tmp_path: Path, what: str) -> None:
    broken(tmp_path, SETTINGS)
    DAMAGE[what](tmp_path / "broken.yaml")
    refused(*CORPUS, cwd=tmp_path, names="broken.yaml")


TEXTUAL = ("storage", "gpu")


@pytest.mark.parametrize(
    ("name", "value"),
    paired([name for name in CLUSTER if name not in TEXTUAL], ["-1", "many", "nan", "1e999"]),
)
def test_variables_out_of_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ELMO_{name.upper()}", value)
    command = ["features", "shards", "model", "store", "--work", "work"]
    refused(*command, cwd=tmp_path, names=f"ELMO_{name.upper()}")
