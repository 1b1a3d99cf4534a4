"""Two processes at one thing: one succeeds, the other succeeds or says who is there."""

import shutil
from pathlib import Path

import pytest
import yaml

from elmo.io.location import Location
from elmo.io.locks import work_folder_lock
from elmo.store import FeatureStore
from elmo.store.verify import verify
from tests.hostile.commands import COMMANDS
from tests.hostile.conftest import settings_of_all
from tests.hostile.harness import INNER, listing, refused
from tests.hostile.processes import Command
from tests.pipeline import here

pytestmark = pytest.mark.usefixtures("tracked")


def together(folder: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """The exit codes of commands begun at once, and what each said."""
    begun = [
        Command(folder, words, said=folder.parent / f"said-{number}")
        for number, words in enumerate(commands)
    ]
    return [(command.wait() or 0, command.said()) for command in begun]


def one_line(said: str) -> str:
    (line,) = [row for row in said.splitlines() if not row.startswith("  ")]
    assert line.startswith("error: ") and not INNER.search(line), line
    return line


@pytest.mark.parametrize("name", ["pretrain", "finetune", "tokenize", "vocab", "corpus"])
def test_a_work_folder_has_one_owner(
    case: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second is told who is there, and nothing of the first is touched."""
    monkeypatch.setattr("pipeline.cluster.workers.map_tasks", here.map_tasks)
    from tests.pipeline.command_line import elmo

    if name == "tokenize":
        assert elmo(*COMMANDS["corpus"], cwd=case)[0] == 0
    work = {"corpus": "corpus-corpus", "tokenize": "tokenize-shards", "vocab": "vocab-words"}
    if name not in work:  # its name follows from the inputs: found by a run that refuses nothing
        copy = shutil.copytree(case, case.with_name("copy"), copy_function=shutil.copyfile)
        folders = []

        def fit(*_: object, storage: Location, **__: object) -> str:
            folders.append(storage.local)
            return "stopped here"

        monkeypatch.setattr("pipeline.cluster.workers.fit", fit)
        assert elmo(*COMMANDS[name], cwd=copy)[0] == 1
        work[name] = f"{name}/{folders[0].name}"
    with work_folder_lock(case / "work" / work[name]):
        line = refused(*COMMANDS[name], cwd=case, names="is working here")
    assert "process" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretrain", "features", "dump", "embed", "export"])
def test_two_at_once(case: Path, name: str) -> None:
    value = settings_of_all()
    value["pretrain"]["training"]["epochs"] = 30
    (case / "params.yaml").write_text(yaml.safe_dump(value))
    ends = together(case, COMMANDS[name], COMMANDS[name])
    assert 0 in {code for code, _ in ends}, ends
    for code, said in ends:
        if code:
            assert code == 1, said
            line = one_line(said)
            assert name != "pretrain" or "is working here" in line
    store = case / ("vectors" if name == "features" else "store")
    verify(store)
    assert name != "pretrain" or (case / "trained" / "config.json").exists()
    assert len(FeatureStore(store)) == 9
    assert not [name for name in listing(case) if "/." in name or name.startswith(".")]
