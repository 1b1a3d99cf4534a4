"""Model folders with another thing in them than their config says, through the commands that read
them; each disagreement has its line in tests/elmo/model/test_folder.py."""

from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import DAMAGE, folders, paired, refused

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")
READERS = ("embed", "perplexity", "export", "finetune", "features")


@pytest.mark.parametrize("name", ["weights.safetensors", "training.json", "config.json"])
@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_files(case: Path, name: str, what: str) -> None:
    DAMAGE[what](case / "model" / name)
    for command in ("embed", "finetune", "features"):
        if command == "features" and name == "weights.safetensors":
            continue  # the actors read them
        refused(*COMMANDS[command], cwd=case, names=f"model/{name}")


FOLDERS = folders("model", {"shards": "task", "a store": "store", "a vocabulary": "vocab"})


@pytest.mark.parametrize(("command", "what"), paired([*READERS, "register", "neighbors"], FOLDERS))
def test_folders_that_are_no_model(case: Path, command: str, what: str) -> None:
    FOLDERS[what](case / "model")
    refused(*COMMANDS[command], cwd=case, names="model")
