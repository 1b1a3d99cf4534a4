"""The documentation and the code name the same things, and its links lead somewhere."""

import ast
import html
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.pipeline.command_line import COMMANDS, ROOT

DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES = list(DVC["stages"])


@pytest.mark.parametrize("stage", STAGES)
def test_one_word_a_stage(stage: str) -> None:
    """In dvc.yaml with a description, in params.yaml, as a command, a module, and in the docs."""
    described = DVC["stages"][stage].get("do", DVC["stages"][stage])
    assert described["desc"]
    section = f"{stage}.${{key}}" if stage == "tasks" else stage
    # Whose figures it shows; whose tokenizer cuts the text.
    others = {"report": ["tasks"], "tokenize": ["pretrain.model"]}.get(stage, [])
    versions = [] if stage == "corpus" else [{"data/versions.json": [stage]}]
    assert described["params"] == [section, *others, *versions]
    assert stage in yaml.safe_load((ROOT / "params.yaml").read_text())
    assert stage in COMMANDS
    assert (ROOT / "pipeline" / "stages" / f"{stage}.py").is_file()
    assert f"| `{stage}` |" in (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")


def test_no_stage_depends_on_how_the_work_is_run() -> None:
    assert "cluster" not in (ROOT / "params.yaml").read_text().replace("cluster.example.yaml", "")
    assert "cluster.yaml" not in (ROOT / "dvc.yaml").read_text()
    assert "/cluster.yaml\n" in (ROOT / ".gitignore").read_text()


def test_dvc_yaml_holds_no_number() -> None:
    for stage in DVC["stages"].values():
        words = str(stage.get("do", stage)["cmd"]).split()
        assert not [word for word in words if word.replace(".", "").isdigit()]


def test_the_guide_shows_the_example_that_the_tests_run() -> None:
    example = (ROOT / "examples" / "tagger.py").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "guides" / "stores.md").read_text(encoding="utf-8")
    assert example.partition('"""\n\n')[2].strip() in guide


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each docstring of the product stands, and its first line."""
    for package in ("elmo", "pipeline", "research"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    name = getattr(node, "name", "")
                    text = (ast.get_docstring(node) or "").partition("\n")[0]
                    yield f"{path.relative_to(ROOT)} {name}", text


def test_docstrings_begin_with_a_verb_or_the_noun() -> None:
    questions = re.compile(r"(What|Where|Whether|How|Which|Who|When|Why|The same)\b")
    assert [where for where, text in docstrings() if questions.match(text)] == []


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pythons_and_extras_of_the_package_are_those_of_the_page() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    versions = set(re.findall(r":: (3\.1\d)\b", " ".join(project["classifiers"])))
    extras, _, tested = page("docs/install.md").partition("| extra | adds |")[2].partition("## ")
    assert set(re.findall(r"\b3\.1\d\b", tested)) == versions
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+)", extras, re.MULTILINE)))
    assert {*listed, "docs", "library-test", "test"} == set(project["optional-dependencies"])


def test_paths_in_backticks_exist() -> None:
    """Of files in this repository, on every page."""
    named = re.compile(r"`((?:elmo|pipeline|research|benchmarks|tests|deploy|docs)/[\w/.-]+\.\w+)`")
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in PAGES
        if path.name != "CHANGELOG.md"
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).exists() and "NAME" not in name
    ]
    assert lost == []


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What can stand after # in a link to a page: its headings, as GitHub and Sphinx name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere in the repository; none of the web is followed."""
    found = []
    for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {line for line in index.splitlines() if re.fullmatch(r"[\w./-]+", line)}
    docs = [path.relative_to(ROOT / "docs") for path in PAGES if path.parent != ROOT]
    pages = {path.with_suffix("").as_posix() for path in docs}
    assert pages - listed <= {"index", "README"}


@pytest.mark.slow
def test_commands_of_the_built_pages_can_be_pasted(tmp_path: Path) -> None:
    """No quotation mark or dash of a command is replaced by a typographic one."""
    subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", ROOT / "docs", tmp_path], check=True
    )
    commands = (tmp_path / "reference" / "generated" / "commands.html").read_text(encoding="utf-8")
    assert "--layer" in commands
    assert re.findall("[‘’“”–]", commands) == []
    for built in tmp_path.rglob("*.html"):
        for block in re.findall(r"<pre>(.*?)</pre>", built.read_text(encoding="utf-8"), re.DOTALL):
            for line in html.unescape(re.sub(r"<[^>]+>", "", block)).splitlines():
                if line.startswith(("elmo ", "$ elmo ")):
                    assert re.findall("[‘’“”–]", line) == [], f"{built.name}: {line}"
