"""Shards whose bytes are not those of their manifest, and ones that were signed again."""

from pathlib import Path

import pytest
import yaml

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("vocab", "features", "pretrain", "finetune")
FILE = "task/train-00000.arrow"


@pytest.mark.parametrize(("command", "what"), paired(READERS, DAMAGE))
def test_damaged_shards(case: Path, command: str, what: str) -> None:
    DAMAGE[what](case / FILE)
    refused(*COMMANDS[command], cwd=case, names=FILE)


@pytest.mark.parametrize("name", ["words.txt", "counts.txt", "characters.json"])
@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_vocabulary(case: Path, name: str, what: str) -> None:
    if name == "counts.txt" and what in ("absent", "dangling"):
        pytest.skip("counts may be absent")
    DAMAGE[what](case / "vocab" / name)
    refused(*COMMANDS["pretrain"], cwd=case, names=f"vocab/{name}")
    assert not (case / "work").exists()


def test_a_filter_wider_than_a_token(case: Path) -> None:
    settings = yaml.safe_load((case / "params.yaml").read_text())
    settings["pretrain"]["network"]["filters"] = [[999, 4]]
    (case / "params.yaml").write_text(yaml.safe_dump(settings))
    refused(*COMMANDS["pretrain"], cwd=case, names="pretrain.network.filters: must be")
    assert not (case / "work").exists()
