"""The wheel, as pip installs it, away from this checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built_wheel(folder: Path) -> Path:
    """Build the wheel from a copy of the sources, and unpack it."""
    source, site = folder / "source", folder / "site"
    source.mkdir()
    for name in ("elmo", "pipeline", "presets"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    names = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "dvc.yaml", "params.yaml")
    for name in (*names, "cluster.example.yaml"):
        shutil.copy(ROOT / name, source / name)
    (source / "elmo_pipeline").symlink_to("pipeline")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(site)
    return site


def environment(site: Path) -> dict[str, str]:
    """Variables under which `elmo` and Python use the wheel unpacked in `site`, and no other."""
    commands = site.parent / "bin"
    commands.mkdir(exist_ok=True)
    command = commands / "elmo"
    command.write_text(
        f"#!{sys.executable}\n"
        "from elmo_pipeline import __main__\n"
        f"assert __main__.__file__.startswith({str(site)!r}), __main__.__file__\n"
        "__main__.main()\n"
    )
    command.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY", "MLFLOW"))}
    path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), kept["PATH"]])
    return kept | {"PATH": path, "PYTHONPATH": str(site), "ELMO_COMPILE": "0", "ELMO_ACTORS": "1"}
