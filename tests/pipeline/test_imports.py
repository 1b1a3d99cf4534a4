"""Rules of the whole repository that no linter has, such as: one dependency, one file."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pipeline.stages import STAGES
from tests.programs import ROOT, python

HOMES = {
    "ray": {"pipeline/cluster/workers.py", "pipeline/cluster/submit.py", "pipeline/cluster/job.py"},
    "mlflow": {"pipeline/tracking/", "elmo/model/pretrained.py"},
    "click": {"pipeline/__main__.py", "pipeline/commands/"},
    "dvc": set(),  # its command line alone is used
}


@cache
def imported(path: Path) -> set[str]:
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def home(path: Path, homes: set[str]) -> str:
    """Which of these files and folders a file is in, or its own path."""
    name = str(path.relative_to(ROOT))
    return next(
        (one for one in homes if name == one or one[-1] == "/" and name.startswith(one)), name
    )


@pytest.mark.parametrize("package", HOMES)
def test_each_engine_is_imported_in_its_own_files_only(package: str) -> None:
    users = {
        home(path, HOMES[package])
        for folder in ("elmo", "pipeline")
        for path in sources(folder)
        if package in imported(path)
    }
    assert users == HOMES[package]


def test_the_formatter_alone_decides_how_code_is_laid_out() -> None:
    folders = ("benchmarks", "docs", "elmo", "examples", "pipeline", "tests")
    paths = [path for folder in folders for path in sources(folder)]
    off = re.compile(r"#\s*fmt:\s*(skip|off)")
    assert [path for path in paths if off.search(path.read_text(encoding="utf-8"))] == []


def meanings(tree: ast.Module, path: str) -> Iterator[tuple[str, str]]:
    """The names of classes and of types such as `Ids = list[int]`, each with its meaning."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, path
        elif isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name):
            if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name.id):
                yield name.id, ast.unparse(node.value)


@pytest.mark.slow
def test_a_class_or_type_name_has_one_meaning() -> None:
    known = defaultdict[str, set[str]](set)
    for path in [*sources("elmo"), *sources("pipeline")]:
        for name, meaning in meanings(ast.parse(path.read_text(encoding="utf-8")), str(path)):
            known[name].add(meaning)
    assert len(known) > 200
    assert {name: several for name, several in known.items() if len(several) > 1} == {}


def test_the_library_knows_nothing_of_the_pipeline() -> None:
    for path in sources("elmo"):
        optional = {"mlflow"} if path.name == "pretrained.py" else set()
        known = imported(path) & {"pipeline", "ray", "mlflow", "dvc", "click", "yaml"}
        assert known <= optional, path


def test_the_pipeline_knows_not_the_name_that_it_is_installed_under() -> None:
    for path in sources("pipeline"):
        assert not imported(path) & {"pipeline", "elmo_pipeline"}, path


def test_the_records_of_the_stages_load_no_torch() -> None:
    """Each command reads them, `elmo --help` too: torch takes seconds."""
    stages = ", ".join(f"pipeline.stages.{name}" for name in STAGES)
    code = f"import sys, {stages}; print(' '.join(sys.modules))"
    loaded = set(python(code).splitlines()[0].split())
    assert "pipeline.stages.report" in loaded
    assert not loaded & {"torch", "scipy", "ray", "mlflow", "dvc"}


@pytest.mark.parametrize("module", ["elmo", "pipeline.commands.cli", "pipeline.settings.params"])
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(' '.join(sys.modules))"
    loaded = set(python(code).split())
    assert module in loaded
    assert not loaded & {"torch", "numpy", "pyarrow", "ray", "mlflow", "dvc"}
