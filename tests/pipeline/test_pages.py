"""Pages of the documentation that a reader follows step by step, followed here."""

import re
from pathlib import Path

import pytest

from tests.pipeline.doc_page import Reader, Step, steps
from tests.pipeline.installed import ROOT, built_wheel, environment

TUTORIAL = ROOT / "docs" / "tutorial.md"
KOREAN = ROOT / "docs" / "guides" / "korean.md"
IN_KOREAN = ROOT / "docs" / "guides" / "korean.ko.md"
# A network of seconds instead of minutes; the vectors keep their width, which the pages show.
TINY = """
tokenize:
  shard_bytes: 16777216
pretrain:
  network:
    filters: [[1, 8], [2, 16]]
    cells: 32
  training:
    epochs: 2
    rows: 8
    samples: 256
finetune:
  training:
    rows: 128
    samples: 64
"""


def follow(page: Path, folder: Path, variables: dict[str, str]) -> Reader:
    """Run a page's steps in `folder`, with the tiny network before the stages first run."""
    reader = Reader(folder, variables)
    try:
        tiny = False
        for step in steps(page):
            if step.source.startswith("elmo run") and not tiny:
                (reader.folder / "presets").mkdir()
                (reader.folder / "presets" / "tiny.yaml").write_text(TINY)
                reader.run(Step(0, "console", "elmo preset tiny", None))
                tiny = True
            reader.check(page, step)
    finally:
        reader.close()
    return reader


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The wheel, installed; without a variable of tests, which the stages would print."""
    installed = environment(built_wheel(tmp_path_factory.mktemp("wheel")))
    roles = [
        f"GIT_{role}_{field}" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")
    ]
    identity = dict.fromkeys(roles, "t@example.org")  # a machine's user may have none yet
    return identity | {name: value for name, value in installed.items() if name != "ELMO_ACTORS"}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_tutorial(variables: dict[str, str], tmp_path: Path) -> None:
    folder = follow(TUTORIAL, tmp_path, variables).folder
    assert folder == tmp_path / "my-project"
    assert (folder / "report" / "index.html").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_guide_to_korean_reviews(variables: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("kiwipiepy", reason="the Korean tokenizer is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert follow(KOREAN, tmp_path, variables).folder == tmp_path / "reviews"


def test_the_guide_in_korean_has_the_same_steps() -> None:
    theirs, ours = steps(KOREAN), steps(IN_KOREAN)
    assert [step[1:] for step in ours] == [step[1:] for step in theirs]


@pytest.mark.parametrize("page", [TUTORIAL, KOREAN, IN_KOREAN], ids=lambda page: page.name)
def test_only_the_installation_is_not_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"^```(\w+)$", text, re.MULTILINE)) == {"sh", "python", "text", "console"}
    (unrun,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert "pip install" in unrun
