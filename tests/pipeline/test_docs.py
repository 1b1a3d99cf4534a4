"""The documentation and the code name the same things."""

from pathlib import Path

import click
import pytest
import yaml

from pipeline.cli import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES = list(DVC["stages"])


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_and_option_has_help(name: str) -> None:
    command = cli.commands[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not isinstance(parameter.type, click.Choice):
            assert parameter.help, f"{name} {parameter.opts}"


@pytest.mark.parametrize("stage", STAGES)
def test_one_word_a_stage(stage: str) -> None:
    """In dvc.yaml with a description, in params.yaml, as a command, a module and in the README."""
    described = DVC["stages"][stage].get("do", DVC["stages"][stage])
    assert described["desc"]
    section = f"{stage}.${{key}}" if stage == "tasks" else stage
    assert described["params"] == [section, f"results.{stage}"]
    assert f"python -m elmo_pipeline {stage} " in described["cmd"]
    assert stage in yaml.safe_load((ROOT / "params.yaml").read_text())
    assert stage in cli.commands
    assert (ROOT / "pipeline" / f"{stage}.py").is_file()
    assert f"| `{stage}` |" in README


def test_no_stage_depends_on_how_the_work_is_run() -> None:
    assert "cluster" not in (ROOT / "params.yaml").read_text().replace("cluster.example.yaml", "")
    assert "cluster.yaml" not in (ROOT / "dvc.yaml").read_text()
    assert "/cluster.yaml\n" in (ROOT / ".gitignore").read_text()


def test_dvc_yaml_holds_no_number() -> None:
    for stage in DVC["stages"].values():
        words = str(stage.get("do", stage)["cmd"]).split()
        assert not [word for word in words if word.replace(".", "").isdigit()]


def files_of_the_tree() -> set[str]:
    """The files that the README's tree names, with their folders."""
    tree = README[README.index("## What is where") :].split("```")[1]
    folders: list[str] = []
    files = set()
    for line in filter(None, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        for name in line.split():
            if name.endswith("/"):
                folders[depth:] = [name]
            elif name.endswith(".py"):
                files.add("".join(folders[:depth]) + name)
            else:
                break
    return files


def test_every_file_is_in_the_readme() -> None:
    paths = [path for folder in ("elmo", "pipeline") for path in (ROOT / folder).rglob("*.py")]
    files = {str(path.relative_to(ROOT)) for path in paths if path.name != "__init__.py"}
    assert files == files_of_the_tree()


def test_ci_runs_the_readmes_test_command() -> None:
    assert "\nmake test\n" in README
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")


def test_the_readme_shows_the_example_that_the_tests_run() -> None:
    example = (ROOT / "examples" / "tagger.py").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2].strip() in README
