"""A disk that is full: one line that says so, and nothing is left of what was written."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import INNER, listing, paired, refused
from tests.hostile.test_outputs import OUTPUTS, WORKING, prepare
from tests.pipeline.command_line import elmo
from tests.small_disk import small_disk

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")


@pytest.fixture
def disk(case: Path) -> Iterator[Path]:
    """A file system of 1 MB, nearly full, in the project."""
    with small_disk(case / "disk", "1m") as folder:
        yield folder


def fill(folder: Path, left: int) -> None:
    """Leave `left` pages of a file system."""
    pages = 0
    with (folder / "theirs").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
                pages += 1
        except OSError:
            pass
        file.truncate(max(0, pages - left) * 4096)


@pytest.mark.parametrize(("command", "left"), paired(OUTPUTS, [0, 1, 2]))
def test_a_full_disk(case: Path, disk: Path, command: str, left: int) -> None:
    prepare(case, command)
    outputs = {"corpus", "shards", "words", "trained", "tuned", "vectors", *OUTPUTS[command]}
    outputs -= {"metrics.json"} | ({"corpus"} if command == "tokenize" else set())
    words = [f"disk/{word}" if word in outputs else word for word in COMMANDS[command]]
    words[0] = COMMANDS[command][0]
    fill(disk, left)
    before = listing(disk)
    code, _, error = elmo(*words, cwd=case)
    if code == 0 and left:
        return  # it fitted
    refused(*words, cwd=case, names="No space left on device", work=True)
    after = listing(disk)
    if command == "features" and "vectors" in after:  # whole parts stay, for the next run
        parts = [name for name in after if name.startswith(("vectors/part-", "vectors/__elmo"))]
        assert parts and set(after) == {*before, *parts, "vectors"}
    else:
        assert after == before, set(after) ^ set(before)
    assert error.count("\n") - error.count("\n  ") <= 2


@pytest.mark.parametrize("output", ["work", "o"])
@pytest.mark.parametrize(("command", "left"), paired(WORKING, [0, 1, 2, 4]))
def test_work_in_progress_on_a_full_disk(
    task_case: Path, disk: Path, command: str, left: int, output: str
) -> None:
    """What is whole stays, for the next run; the line names a file or folder of that disk."""
    if output not in WORKING[command]:
        pytest.skip("its output is tried above")
    prepare(task_case, command)
    fill(disk, left)
    words = [f"disk/{word}" if word == output else word for word in WORKING[command]]
    code, _, error = elmo(*words, cwd=task_case)
    if code == 0:
        assert left or command == "corpus"  # it keeps nothing of small files
        return
    assert code == 1, error
    line = error.splitlines()[-1]
    assert line.startswith("error: ") and f"disk/{output}" in line and len(line) < 500, line
    assert "No space left on device; make room" in line and not INNER.search(line), line
    (disk / "theirs").unlink()
    code, _, error = elmo(*words, cwd=task_case)
    assert code == 0, error


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_store_that_is_replaced_on_a_full_disk(case: Path, disk: Path, left: int) -> None:
    subprocess.run(["cp", "-r", "store", "disk/store"], cwd=case, check=True)
    before = listing(disk)
    fill(disk, left)
    words = ["disk/store" if word == "vectors" else word for word in COMMANDS["features"]]
    code, _, _ = elmo(*words, cwd=case)
    (disk / "theirs").unlink()
    if code == 0:
        assert left
        return
    assert code == 1
    assert listing(disk) == before
    for again in (words, ["verify", "disk/store"]):
        code, _, error = elmo(*again, cwd=case)
        assert code == 0, error


def test_a_new_project_on_a_full_disk(case: Path, disk: Path) -> None:
    fill(disk, 0)
    code, _, error = elmo("init", "disk/new", cwd=case)
    assert code == 1 and "new: cannot be written (No space left on device; make room" in error
    assert listing(disk).keys() == {"theirs"}
