"""Outputs that are not ours, or can't be made: refused before work, and left as they are."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import listing, refused
from tests.pipeline.command_line import elmo

pytestmark = pytest.mark.usefixtures("tracked", "without_ray")


def somebodys(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def linked_file(path: Path) -> None:
    path.with_name("theirs").write_text("years of work")
    path.symlink_to("theirs")


def linked_folder(path: Path) -> None:
    somebodys(path.with_name("theirs"))
    path.symlink_to("theirs")


# What stands where an output is to go.
THEIRS: dict[str, Callable[[Path], object]] = {
    "a folder": somebodys,
    "a file": lambda path: path.write_text("years of work"),
    "a link to a file": linked_file,
    "a link to a folder": linked_folder,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a loop": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
}
# Each output of each command.
OUTPUTS = {
    "corpus": ["corpus", "metrics.json"],
    "tokenize": ["shards", "metrics.json"],
    "vocab": ["words", "metrics.json"],
    "pretrain": ["trained", "curves", "metrics.json"],
    "finetune": ["tuned", "curves", "metrics.json"],
    "features": ["vectors", "metrics.json"],
    "register": ["version.json", "metrics.json"],
    "embed": ["out.npz"],
    "export": ["options.json", "weights.hdf5"],
    "dump": ["dump.hdf5"],
    "dump lists": ["dump.parquet"],
    "dump-tokens": ["tokens.hdf5"],
}


def prepare(case: Path, command: str) -> None:
    """Make the corpus that `tokenize` reads."""
    if command == "tokenize":
        assert elmo(*COMMANDS["corpus"], cwd=case)[0] == 0
        (case / "metrics.json").unlink()


@pytest.mark.parametrize("what", THEIRS)
@pytest.mark.parametrize(
    ("command", "output"), [(command, out) for command, outs in OUTPUTS.items() for out in outs]
)
def test_what_is_not_ours_stays(case: Path, command: str, output: str, what: str) -> None:
    prepare(case, command)
    if what == "a file" and output in ("options.json", "version.json", "metrics.json"):
        (case / output).write_text("years of work")
    THEIRS[what](case / output)
    refused(*COMMANDS[command], cwd=case, names=output)


# A place that no file can be made in, as NAME/x.
NOWHERE: dict[str, Callable[[Path], object]] = {
    "below a file": lambda path: path.write_text("a file"),
    "below a loop": lambda path: path.symlink_to(path.name),
    "below a dangling link": lambda path: path.symlink_to("no/where"),
}


@pytest.mark.parametrize("what", NOWHERE)
@pytest.mark.parametrize("command", OUTPUTS)
def test_nowhere_to_write(case: Path, command: str, what: str) -> None:
    prepare(case, command)
    NOWHERE[what](case / "at")
    name, *words = COMMANDS[command]
    output = OUTPUTS[command][0]
    refused(name, *(f"at/{word}" if word == output else word for word in words), cwd=case)


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_name_that_no_file_has(case: Path, command: str) -> None:
    prepare(case, command)
    name, *words = COMMANDS[command]
    output = OUTPUTS[command][0]
    refused(name, *("x" * 300 if word == output else word for word in words), cwd=case)


def test_names_with_a_line_end_are_shown_on_one_line(case: Path) -> None:
    for command in ("verify", "compact", "embed", "export", "dump", "dump lists", "dump-tokens"):
        outputs = [*OUTPUTS.get(command, []), "store"]
        odd = {name: f"a\nb{name}" for name in outputs}
        if not (case / odd["store"]).exists():
            (case / "store").rename(case / odd["store"])
        words = [odd.get(word, word) for word in COMMANDS[command]]
        code, out, error = elmo(*words, cwd=case)
        assert (code, out.count("\n")) == (0, 1), f"{command}: {out}{error}"
        assert "a\\nb" in out


def test_refusals_leave_no_work_in_progress(case: Path) -> None:
    somebodys(case / "words")
    refused(*COMMANDS["vocab"], cwd=case, names="words")
    assert "runs" not in {path.name for path in case.iterdir()}
    assert not [name for name in listing(case) if "/." in name or name.startswith(".")]


@pytest.mark.parametrize(
    ("command", "output", "ours"),
    [
        ("tokenize", "shards", "task"),
        ("vocab", "words", "vocab"),
        ("pretrain", "trained", "model"),
        ("finetune", "tuned", "model"),
    ],
)
def test_a_file_of_theirs_among_ours_stays(
    case: Path, command: str, output: str, ours: str
) -> None:
    prepare(case, command)
    shutil.copytree(case / ours, case / output)
    (case / output / "thesis.txt").write_text("years of work")
    refused(*COMMANDS[command], cwd=case, names="thesis.txt")


# The outputs of other stages are nobody's to replace, though they are this project's.
OTHERS = {
    "corpus": ["task", "model", "vocab", "store"],
    "tokenize": ["corpus", "model", "vocab", "store"],
    "vocab": ["task", "model", "store"],
    "pretrain": ["task", "vocab", "store", "curves"],
    "finetune": ["task", "vocab", "store"],
    "features": ["task", "model", "vocab"],
    "dump datasets": ["task", "model", "store", "in.txt"],
}


@pytest.mark.parametrize(
    ("command", "other"), [(command, one) for command, ones in OTHERS.items() for one in ones]
)
def test_what_another_stage_has_written_stays(case: Path, command: str, other: str) -> None:
    prepare(case, command)
    words = COMMANDS.get(command, ["dump", "store", "o", "--layout", "datasets"])
    name, *words = words
    output = OUTPUTS.get(command, ["o"])[0]
    refused(name, *(other if word == output else word for word in words), cwd=case, names=other)


def test_devices_that_are_not_there(case: Path) -> None:
    for device in ("tpu", "meta", "cpu:x", ""):
        refused(*COMMANDS["embed"], "--device", device, cwd=case, names="--device")
        task = ["task", "predict", "model", "--input", "in.txt", "--device", device]
        refused(*task, cwd=case, names="--device")
    if not torch.cuda.is_available():
        refused(*COMMANDS["append"], "--gpu", cwd=case, names="no CUDA device")
