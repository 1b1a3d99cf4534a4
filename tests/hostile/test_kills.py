"""Each stage and each command that writes, killed at instants drawn at random and run again: what
is there in the end is what a run that nobody killed leaves."""

import json
import random
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from elmo.model.folder import load_model
from elmo.store.verify import verify
from tests.hostile.commands import COMMANDS
from tests.hostile.harness import listing
from tests.hostile.processes import Command
from tests.hostile.test_outputs import OUTPUTS

KILLS = 3
# What a command writes that says when or where it ran: the run of MLflow, seconds.
WHEN = {"metrics.json", "version.json", "training.json", "config.json"}


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTPUTS)
def test_killed_at_any_instant_and_run_again(
    case: Path, tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    draw = random.Random(name)
    folders = {}
    for which in ("whole", "killed"):
        folders[which] = tmp_path / which / "project"
        shutil.copytree(case, folders[which], copy_function=shutil.copyfile)
        shutil.copyfile(database, tmp_path / which / "mlflow.db")

    def begin(which: str, number: int, words: list[str] = COMMANDS[name]) -> Command:
        address = f"sqlite:///{tmp_path / which / 'mlflow.db'}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        return Command(folders[which], words, said=tmp_path / f"{which}-{number}")

    if name == "tokenize":
        for which in folders:
            assert begin(which, -1, COMMANDS["corpus"]).wait() == 0
    whole = begin("whole", 0)
    assert whole.wait() == 0, whole.said()
    took = time.monotonic() - whole.began
    for number in range(KILLS):
        killed = begin("killed", number)
        killed.wait(draw.uniform(0, took))
        killed.kill()
        if killed.wait() == 0:  # it was faster than the draw
            took /= 2
    again = begin("killed", KILLS)
    code = again.wait()
    published = {
        "export": "options.json: already exists",
        "embed": "out.npz: already exists",
        "dump": "dump.parquet: already exists",
    }
    assert code == 0 or published.get(name, "no error") in again.said(), again.said()
    expected, found = (results(folders[which]) for which in ("whole", "killed"))
    different = {name for name in {*found, *expected} if found.get(name) != expected.get(name)}
    assert not different, different
    if name == "register":
        assert registered(tmp_path / "killed") == registered(tmp_path / "whole")


def results(folder: Path) -> dict[str, Any]:
    """What a command has left, but for work in progress and what says when it ran."""
    left: dict[str, Any] = {
        name: digest
        for name, digest in listing(folder).items()
        if name.rpartition("/")[2] not in WHEN and not name.startswith("corpus/manifest")
    }
    assert not [name for name in left if name.startswith(".") or "/." in name], left
    for config in folder.glob("*/config.json"):
        left[config.parent.name] = load_model(config.parent).digest
    for store in {path.parents[1] for path in folder.glob("*/__elmo/manifest.json")}:
        left[f"{store.name}'s counts"] = str(verify(store).counts)
    if (folder / "version.json").exists():
        left["version.json"] = json.loads((folder / "version.json").read_text())
    return left


def registered(folder: Path) -> int:
    """How many versions there are. What a killed run logged stays, for `mlflow gc`."""
    with sqlite3.connect(folder / "mlflow.db") as connection:
        (versions,) = connection.execute("SELECT count(*) FROM model_versions").fetchone()
    connection.close()
    return int(versions)
