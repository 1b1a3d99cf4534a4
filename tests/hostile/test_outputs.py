"""Outputs that are not ours, or can't be made: refused before work, and left as they are."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile.commands import COMMANDS
from tests.hostile.harness import paired, refused
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
}
LINKS = [what for what in THEIRS if "link" in what]
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
    "dump": ["dump.parquet"],
}


def prepare(case: Path, command: str) -> None:
    """Make the corpus that `tokenize` reads."""
    if command == "tokenize":
        assert elmo(*COMMANDS["corpus"], cwd=case)[0] == 0
        (case / "metrics.json").unlink()


EACH = [(command, out) for command, outs in OUTPUTS.items() for out in outs]


@pytest.mark.parametrize(
    ("command", "output", "what"),
    [(*each, what) for each in EACH for what in ("a folder", "a file")]
    + [(*each, what) for each, what in paired(EACH, LINKS)],
)
def test_what_is_not_ours_stays(case: Path, command: str, output: str, what: str) -> None:
    prepare(case, command)
    if what == "a file" and output in ("options.json", "version.json", "metrics.json"):
        (case / output).write_text("years of work")
    THEIRS[what](case / output)
    refused(*COMMANDS[command], cwd=case, names=output)


# Where no file can be made: an output NAME/x below one of these.
NOWHERE: dict[str, Callable[[Path], object]] = {
    "below a file": lambda path: path.write_text("a file"),
    "below a dangling link": lambda path: path.symlink_to("no/where"),
}


@pytest.mark.parametrize(("command", "what"), paired(OUTPUTS, NOWHERE))
def test_nowhere_to_write(case: Path, command: str, what: str) -> None:
    prepare(case, command)
    NOWHERE[what](case / "at")
    name, *words = COMMANDS[command]
    output = OUTPUTS[command][0]
    refused(name, *(f"at/{word}" if word == output else word for word in words), cwd=case)


@pytest.mark.parametrize(
    ("command", "output", "ours"),
    [
        ("tokenize", "shards", "task"),
        ("vocab", "words", "vocab"),
        ("pretrain", "trained", "model"),
        ("finetune", "tuned", "model"),
        ("features", "vectors", "store"),
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
}


@pytest.mark.parametrize(
    ("command", "other"), [(command, one) for command, ones in OTHERS.items() for one in ones]
)
def test_what_another_stage_has_written_stays(case: Path, command: str, other: str) -> None:
    prepare(case, command)
    name, *words = COMMANDS[command]
    output = OUTPUTS[command][0]
    refused(name, *(other if word == output else word for word in words), cwd=case, names=other)


MINE = '{"text": "years of work"}\n'  # as JSON begins, and as nothing here writes


@pytest.mark.parametrize("command", ["vocab", "register"])
@pytest.mark.parametrize(
    "theirs", ["model/config.json", "store/__elmo/manifest.json", "task/manifest.json", "t.jsonl"]
)
def test_figures_replace_no_json_but_figures(case: Path, command: str, theirs: str) -> None:
    (case / "t.jsonl").write_text(MINE)
    words = [theirs if word == "metrics.json" else word for word in COMMANDS[command]]
    refused(*words, cwd=case, names=theirs)


def test_figures_of_before_are_replaced(case: Path) -> None:
    words = COMMANDS["vocab"]
    assert elmo(*words, cwd=case)[0] == 0
    before = (case / "metrics.json").read_bytes()
    assert elmo(*words, cwd=case)[0] == 0
    assert (case / "metrics.json").read_bytes() == before


def test_the_record_of_register_replaces_no_other_json(case: Path) -> None:
    (case / "version.json").write_text('{"mine": 1}')
    refused(*COMMANDS["register"], cwd=case, names="version.json")


TASK = ["tasks", "mine", "model", "o", "--curve", "c.tsv", "--picture", "c.png", "--work", "work"]
TASK += ["--metrics", "metrics.json"]


@pytest.mark.parametrize(("output", "what"), paired(["c.tsv", "c.png", "o"] * 2, THEIRS))
def test_a_task_replaces_nothing_of_theirs(task_case: Path, output: str, what: str) -> None:
    THEIRS[what](task_case / output)
    refused(*TASK, cwd=task_case, names=output)


@pytest.mark.parametrize("output", ["c.tsv", "c.png", "o", "metrics.json"])
def test_a_task_looks_for_a_place_before_work(task_case: Path, output: str) -> None:
    words = [f"text.txt/{word}" if word == output else word for word in TASK]
    refused(*words, cwd=task_case, names=f"text.txt/{output}")


def test_a_task_replaces_its_own(task_case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for storage in ("", "s3://bucket/name"):  # its work and its outputs stay here
        monkeypatch.setenv("ELMO_STORAGE", storage)
        code, _, error = elmo(*TASK, cwd=task_case)
        assert code == 0, error


@pytest.mark.parametrize("output", ["words", "words/m.json"])
def test_figures_go_to_a_file_of_their_own(case: Path, output: str) -> None:
    words = [output if word == "metrics.json" else word for word in COMMANDS["vocab"]]
    assert "/." not in refused(*words, cwd=case, names=output)


@pytest.mark.parametrize("option", ["--out", "--work"])
def test_a_path_goes_back_from_no_folder_that_is_missing(task_case: Path, option: str) -> None:
    words = [*WORKING["task train"], option, "o/../m"]
    assert ".. leaves a folder" in refused(*words, cwd=task_case, names="o/../m")


# An output that is, holds or lies in an input: what would be read is not replaced.
ONTO = {
    "finetune": ("tuned", ["model", "./model", "linked", "model/tuned", "."]),
    "pretrain": ("trained", ["vocab/trained", "vocab"]),
    "features": ("vectors", ["task", "model/vectors"]),
    "register": ("version.json", ["model/version.json", "store/version.json"]),
}


@pytest.mark.parametrize(
    ("command", "output"),
    [(command, output) for command, (_, all_) in ONTO.items() for output in all_],
)
def test_an_output_is_no_input(case: Path, command: str, output: str) -> None:
    (case / "linked").symlink_to("model")
    words = [output if word == ONTO[command][0] else word for word in COMMANDS[command]]
    assert "which is read" in refused(*words, cwd=case, names=Path(output).name)


def test_a_folder_is_replaced_where_that_is_asked_for(case: Path) -> None:
    assert elmo(*COMMANDS["export"], cwd=case)[0] == 0
    for words in (
        ["import", "options.json", "weights.hdf5", "new/model"],
        ["package", "model", "new/package", "--name", "tiny"],
    ):
        assert elmo(*words, cwd=case)[0] == 0
        assert "already exists" in refused(*words, cwd=case, names="--overwrite")
        code, _, error = elmo(*words, "--overwrite", cwd=case)
        assert code == 0, error
    refused("package", "model", "vocab", "--name", "tiny", "--overwrite", cwd=case, names="vocab")
    refused("export", "model", "a", "./a", "--overwrite", cwd=case, names="a: is OPTIONS too")
    (case / "loop").symlink_to("loop")
    refused(
        "export", "model", "loop", "b", "--overwrite", cwd=case, names="loop: is a symbolic link"
    )


# With --overwrite: what is read, and files of another kind.
NEVER = {
    "embed": ("out.npz", ["in.txt", "model/weights.safetensors", "params.yaml"]),
    "export": ("options.json", ["model/config.json", "params.yaml", "other.json"]),
    "dump": ("dump.parquet", ["store/part.parquet", "in.txt"]),
}


@pytest.mark.parametrize(
    ("command", "output"), [(command, one) for command, (_, all_) in NEVER.items() for one in all_]
)
def test_overwriting_replaces_nothing_that_is_read_or_of_another_kind(
    case: Path, command: str, output: str
) -> None:
    (case / "other.json").write_text('{"mine": 1}')
    if command == "dump" and output.startswith("store"):
        output = min(path.relative_to(case).as_posix() for path in case.glob("store/part-*"))
    words = [output if word == NEVER[command][0] else word for word in COMMANDS[command]]
    refused(*words, "--overwrite", cwd=case, names=output)


@pytest.mark.parametrize(
    ("command", "output", "files"),
    [
        ("pretrain", "curves", ["train.tsv", "heldout.tsv"]),
        ("vocab", "words", ["words.txt", "counts.txt", "characters.json"]),
        ("labels", "labels", ["train.jsonl", "dev.jsonl", "test.jsonl"]),
    ],
)
def test_names_alone_do_not_make_a_folder_ours(
    case: Path, command: str, output: str, files: list[str]
) -> None:
    (case / output).mkdir()
    for file in files:
        (case / output / file).write_text("{}\n")
    refused(*COMMANDS.get(command, ["labels", "labels"]), cwd=case, names=output)


def test_labels_replace_their_own(case: Path) -> None:
    for _ in range(2):
        code, _, error = elmo("labels", "labels", cwd=case)
        assert code == 0, error
    names = {path.name for path in (case / "labels").iterdir()}
    assert names == {"manifest.json", "train.jsonl", "dev.jsonl", "test.jsonl"}


def small_task(*words: str) -> list[str]:
    """The end of a command that trains a tiny task on the files of `task_case`."""
    own = ["characters=0", "word_dim=4", "min_count=1", "hidden=4", "epochs=1"]
    return [*words, *(word for one in own for word in ("--set", one))]


LABELLED = ["--train", "train.conll", "--dev", "dev.conll", "--model", "model"]
# Each command that keeps work in progress.
WORKING = {
    **{name: words for name, words in COMMANDS.items() if "--work" in words},
    "tasks": TASK,
    "task train": small_task("task", "train", "tagging", *LABELLED, "--out", "o", "--work", "work"),
    "research compare": small_task(
        "findings",
        "compare",
        "tagging",
        *LABELLED,
        *("--test", "test.conll", "--out", "o.json", "--work", "work"),
    ),
}
READ = {"tokenize": "corpus", "vocab": "task", "pretrain": "vocab", "corpus": "corpus"}


@pytest.mark.parametrize("below", ["", "/below"])
@pytest.mark.parametrize("command", WORKING)
def test_work_in_progress_lies_in_nothing_that_is_read_or_written(
    task_case: Path, command: str, below: str
) -> None:
    prepare(task_case, command)
    work = READ.get(command, "model") + below
    words = [work if word == "work" else word for word in WORKING[command]]
    refused(*words, cwd=task_case, names=f"--work {work}: ")


def test_a_task_takes_of_a_model_what_is_the_model_s(task_case: Path) -> None:
    (task_case / "model" / "notes").mkdir()
    (task_case / "model" / "notes" / "mine.txt").write_text("years of work")
    for more in ((), ("--overwrite",)):  # it replaces no file that is not a task's
        code, _, error = elmo(*WORKING["task train"], *more, cwd=task_case)
        assert code == 0, error
    assert not (task_case / "o" / "model" / "notes").exists()
