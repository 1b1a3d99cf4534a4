"""What a submitted job runs on the cluster; it travels as `elmo_job.py`, so standard library only.

Beside it lie what was sent: `environment.json`, and the code, dvc.yaml and params.yaml unless the
cluster has a checkout of its own.
"""

import ctypes
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
PROJECT_FILES = ("dvc.yaml", "params.yaml", "cluster.yaml")
ENVIRONMENT = "environment.json"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


def environment() -> None:
    """Set the variables that were sent; Ray calls this in every process of the job.

    They come in a file and not in the job's runtime_env, which Ray shows and logs.
    """
    sent = PACKAGE / ENVIRONMENT
    if sent.exists():
        os.environ.update(json.loads(sent.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    """Run `FOLDER COMMAND…`: the command in that folder, `-` being the package's own."""
    folder, *command = arguments
    environment()
    home = PACKAGE if folder == "-" else Path(folder)
    if not home.is_dir():
        print(f"error: {os.uname().nodename} has no folder {home}; mount it there", flush=True)
        return 1
    own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if (PACKAGE / "elmo_pipeline").is_dir():
        paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
        own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if folder != "-":
            _prepare(home, os.environ | own)
    return run(command, home, os.environ | own)


def _prepare(home: Path, variables: dict[str, str]) -> None:
    """Make `home` a DVC workspace of the project as it was sent; its outs and dvc.lock stay."""
    if not (home / ".dvc").exists():
        subprocess.run(["dvc", "init", "--no-scm", "-q"], cwd=home, env=variables, check=True)
    for name in PROJECT_FILES:
        sent, there = PACKAGE / name, home / name
        if not sent.exists() or (there.exists() and filecmp.cmp(sent, there, shallow=False)):
            continue
        new = home / f".{name}.{os.getpid()}"
        shutil.copyfile(sent, new)
        new.replace(there)


def run(command: list[str], folder: Path, variables: dict[str, str]) -> int:
    """Run a command to its end, through a stop.

    A stop signals every process of the job. Those that save must be waited for, and their parents
    may have died: they become children of this process.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: stopped.append(got))
    child = subprocess.Popen(command, cwd=folder, env=variables)
    code = child.wait()
    while stopped:
        try:
            os.wait()
        except ChildProcessError:
            break
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
