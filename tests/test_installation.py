"""What a stranger's first commands install, and what the first screen of README shows."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.pipeline.doc_page import pattern, steps
from tests.programs import ROOT, call

README = ROOT / "README.md"


def test_a_package_that_is_published_as_source_is_refused(tmp_path: Path) -> None:
    """Unless .ci/install names it: what it builds with is pinned nowhere."""
    source = tmp_path / "needs_building-1.0"
    source.mkdir()
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: needs-building\nVersion: 1.0\n")
    (source / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    with tarfile.open(tmp_path / "needs_building-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "project"\nversion = "1.0"\ndependencies = ["needs-building"]\n'
    )
    done = install(project, tmp_path, links=tmp_path)
    assert done.returncode == 1
    assert "needs-building" in done.stderr and "wheel" in done.stderr
    assert not list((tmp_path / "environment").rglob("needs_building*"))


def install(project: Path, folder: Path, *, links: Path) -> subprocess.CompletedProcess[str]:
    """Run .ci/install in a new environment which finds pip's links alone, and this one's uv."""
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    import uv

    (packages / "uv.pth").write_text(f"{Path(uv.__file__).parents[1]}\n")
    shutil.copy(uv.find_uv_bin(), environment / "bin")
    variables = os.environ | {"PIP_FIND_LINKS": str(links), "UV_OFFLINE": "1"}
    return subprocess.run(
        ["sh", ".ci/install", sys.executable, str(environment), "", str(project)],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_first_screen_of_readme(tmp_path: Path) -> None:
    """In a clone, with an empty home and no variable but those of a login."""
    clone = tmp_path / "elmo"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    first_screen = README.read_text(encoding="utf-8").partition("\n## ")[0]
    demo, repro = re.findall(r"^```\n(make \w+)\n```$", first_screen, re.MULTILINE)
    (closing,) = re.findall(r"^```\n(made:.*?)```$", first_screen, re.MULTILINE | re.DOTALL)

    run_as_a_stranger(demo, clone)
    assert (clone / "build" / "two-senses.png").stat().st_size > 10_000

    (lines,) = (step for step in steps(README) if step.source.startswith("import elmo"))
    printed = run_as_a_stranger(f"{clone}/.venv/bin/python -c '{lines.source}'", clone)
    assert pattern(lines.expected or "", exact=True).fullmatch(printed)

    printed = run_as_a_stranger(repro, clone)
    assert pattern(f"…\n{closing}", exact=False).fullmatch(printed), printed


def run_as_a_stranger(command: str, clone: Path) -> str:
    """Return what a command prints that ends well."""
    home = clone.parent / "home"
    home.mkdir(exist_ok=True)
    kept = ("PATH", "LANG", "PIP_FIND_LINKS", "PIP_INDEX_URL", "UV_CACHE_DIR")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    path = os.pathsep.join(
        folder
        for folder in variables.pop("PATH").split(os.pathsep)
        if Path(folder) != Path(sys.executable).parent
    )
    return call("sh", "-c", command, cwd=clone, env=variables | {"HOME": str(home), "PATH": path})
