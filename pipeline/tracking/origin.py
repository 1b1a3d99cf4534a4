"""The origin of an MLflow run: user, command, commit and packages."""

import contextlib
import json
import os
import platform
import subprocess
import sys
from typing import Any

from ..terminal.urls import hide_credentials_in
from .client import project_root

COMMIT_VARIABLE = "ELMO_COMMIT"  # the tags of the commit as JSON, from `elmo submit`
COMMIT_TAG = "mlflow.source.git.commit"


def origin_tags() -> dict[str, str]:
    """Return the MLflow tags that name the user, the command and the commit."""
    import getpass

    tags = {"mlflow.source.type": "LOCAL"}
    command = ["elmo" if a.endswith("__main__.py") else a for a in sys.argv[:1]] + sys.argv[1:]
    tags["mlflow.source.name"] = hide_credentials_in(" ".join(command))[:500]
    with contextlib.suppress(Exception):  # a container's user has no name
        tags["mlflow.user"] = getpass.getuser()
    return tags | commit_tags()


def commit_tags() -> dict[str, str]:
    """Return the MLflow tags of the project's commit, and of the files that differ from it.

    Without git, there are none. In a job, they are those of the project that was sent.
    """
    if tags_text := os.environ.get(COMMIT_VARIABLE):
        return dict(json.loads(tags_text))

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(project_root()), *arguments]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process = subprocess.run(command, capture_output=True, text=True, timeout=20)
            return process.stdout.rstrip() if process.returncode == 0 else None
        return None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return {}
    tags = {COMMIT_TAG: commit}
    branch = git("rev-parse", "--abbrev-ref", "HEAD")
    tags |= {"mlflow.source.git.branch": branch} if branch else {}
    # Tracked files that stages write are not changes of the project.
    status = git(
        "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!metrics"
    )
    changed_files = [line[3:] for line in (status or "").splitlines()]
    tags["git.dirty"] = str(bool(changed_files)).lower()
    return tags | ({"git.changed": ", ".join(changed_files)[:500]} if changed_files else {})


def package_versions() -> dict[str, Any]:
    """Return the versions of Python and of the packages that results depend on, and the system."""
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "ray", "dvc", "mlflow")
    packages = {name: version(name) for name in names}
    return {"python": platform.python_version(), "system": platform.system(), "packages": packages}
