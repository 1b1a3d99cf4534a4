"""Presets name what differs and nothing else, and leave the rest of params.yaml alone."""

import shutil
from pathlib import Path

import pytest

from elmo.errors import ElmoError
from pipeline.settings import params, preset

ROOT = Path(__file__).resolve().parents[3]
NAMES = sorted(path.stem for path in (ROOT / "presets").glob("*.yaml"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "params.yaml", tmp_path)
    shutil.copytree(ROOT / "presets", tmp_path / "presets")
    return tmp_path / "params.yaml"


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_changes_its_own_lines_only(project: Path, name: str) -> None:
    before = project.read_text().splitlines()
    preset.apply_preset(name, project)
    after = project.read_text().splitlines()
    named = (project.parent / "presets" / f"{name}.yaml").read_text().splitlines()
    values = [line for line in named if not line.startswith("#") and not line.endswith(":")]
    assert len(before) == len(after)
    assert sum(a != b for a, b in zip(before, after, strict=True)) == len(values)
    preset.apply_preset(name, project)
    assert project.read_text().splitlines() == after
    params.load(project)


def test_comments_and_the_users_own_values_stay(project: Path) -> None:
    text = project.read_text().replace("general: []  #", "general: [a.txt]  # mine:")
    project.write_text(text)
    preset.apply_preset("original", project)
    loaded = params.load(project)
    assert loaded.corpus.general == ("a.txt",) and loaded.pretrain.network.cells == 4096
    assert "general: [a.txt]  # mine:" in project.read_text()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("huge", None, f"no preset huge; there are {', '.join(NAMES)}"),
        ("../params", None, "no preset ../params"),
        ("mine", "vocab:\n  min_cuont: 3\n", "mine.yaml:2: .*params.yaml has no vocab.min_cuont"),
        ("mine", "vocab:\n  min_count: 0\n", "mine.yaml:.*vocab.min_count must be a whole number"),
        ("mine", "", "mine.yaml: must hold sections of settings"),
    ],
)
def test_a_bad_preset_changes_nothing(
    project: Path, name: str, text: str | None, message: str
) -> None:
    before = project.read_text()
    if text is not None:
        (project.parent / "presets" / f"{name}.yaml").write_text(text)
    with pytest.raises(ElmoError, match=message):
        preset.apply_preset(name, project)
    assert project.read_text() == before
    assert sorted(path.name for path in project.parent.iterdir()) == ["params.yaml", "presets"]
