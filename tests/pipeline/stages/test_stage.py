"""What follows from a stage's record: its command, its version, what DVC sees of it."""

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml

from pipeline.commands.stages import stage_command
from pipeline.settings import params
from pipeline.settings.fingerprint import fingerprint
from pipeline.stages import STAGES, load_stage
from tests.pipeline.command_line import ROOT, elmo

GRAPH = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def test_the_table_of_stages_is_that_of_dvc_yaml() -> None:
    assert list(STAGES) == list(GRAPH)
    assert [load_stage(name).name for name in STAGES] == list(STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_dvc_gives_a_stage_what_its_record_asks_for(name: str) -> None:
    described = GRAPH[name].get("do", GRAPH[name])
    words = described["cmd"].replace("${item}", "general").split()
    assert words[:4] == ["python", "-m", "elmo_pipeline", name]
    made = stage_command(load_stage(name))
    made.make_context(name, words[4:], resilient_parsing=False)  # raises on what it does not know
    options = {o for p in made.params if isinstance(p, click.Option) and p.required for o in p.opts}
    assert options <= set(words)


def test_the_versions_of_all_results_are_written(tmp_path: Path) -> None:
    own = yaml.safe_load((ROOT / "params.yaml").read_text())
    (tmp_path / "t.txt").write_text("a b\n")
    own["corpus"] |= {"general": ["t.txt"], "domain": ["t.txt"]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(own))
    code, _, error = elmo("corpus", "c", "--work", "r", "--versions", "v.json", cwd=tmp_path)
    assert code == 0, error
    written = json.loads((tmp_path / "v.json").read_text())
    assert written == {name: load_stage(name).version for name in STAGES}


def test_work_in_progress_of_another_version_is_not_found() -> None:
    section = params.load(ROOT / "params.yaml").pretrain
    pretrain = load_stage("pretrain")
    newer = replace(pretrain, version=pretrain.version + 1)
    keys = [fingerprint(one.name, one.version, section, {}) for one in (pretrain, pretrain, newer)]
    assert keys[0] == keys[1] != keys[2]


def test_a_perplexity_above_the_unigram_model_is_not_said_to_lie_below_it() -> None:
    from pipeline.stages import pretrain

    figures = {"heldout_perplexity": 189.5, "unigram_perplexity": 130.7, "steps": 1.0}
    said = pretrain.summary(figures | {"times_below_unigram": 130.7 / 189.5})
    assert "perplexity 189.5, 1.4× higher than the unigram model's 130.7; " in said
    said = pretrain.summary(figures | {"times_below_unigram": 4.0})
    assert said.endswith("perplexity 189.5, 4.0× lower than the unigram model's 130.7")
