"""A stage whose code changes its results says so; old work in progress is not used."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from elmo.errors import ElmoError
from pipeline.settings import params, results

ROOT = Path(__file__).resolve().parents[3]


def test_params_hold_the_versions_of_this_code_and_each_stage_depends_on_its_own() -> None:
    assert params.load(ROOT / "params.yaml").results == results.RESULTS
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == list(asdict(results.RESULTS))
    for name, stage in stages.items():
        assert f"results.{name}" in stage.get("do", stage)["params"]


def test_a_new_version_of_the_code_is_refused_until_params_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = results.RESULTS
    results.check("pretrain", declared, Path("params.yaml"))
    monkeypatch.setattr(results, "RESULTS", replace(declared, pretrain=declared.pretrain + 1))
    with pytest.raises(ElmoError) as caught:
        results.check("pretrain", declared, Path("params.yaml"))
    assert str(caught.value) == (
        f"params.yaml: results.pretrain is {declared.pretrain} and this code's is "
        f"{declared.pretrain + 1}; set results.pretrain to {declared.pretrain + 1}, and "
        "dvc repro makes the stage's results again"
    )
    results.check("vocab", declared, Path("params.yaml"))


def test_work_in_progress_of_another_version_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    section = params.load(ROOT / "params.yaml").pretrain
    before = results.fingerprint("pretrain", section, {"corpus": "0"})
    assert before == results.fingerprint("pretrain", section, {"corpus": "0"})
    monkeypatch.setattr(results, "RESULTS", replace(results.RESULTS, pretrain=99))
    assert before != results.fingerprint("pretrain", section, {"corpus": "0"})
