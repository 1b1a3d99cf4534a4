"""Data and models at a URL in place of the project's folder, for clusters without a shared one.

With `storage: s3://bucket/elmo` the path `data/shards` of a command or of dvc.yaml stands for
`s3://bucket/elmo/data/shards`. In the project's own folder a stage leaves the manifests of what it
wrote there: small files, which hold the digests of all others, so DVC sees what has changed.
"""

import shutil
from pathlib import Path

from elmo.folders import new_folder
from elmo.location import Folder, Location

from . import cluster as execution
from .job import STORED

_MANIFESTS = ("config.json", "manifest.json")


def url() -> str:
    """The URL that is in force, without a slash at its end; empty: the project's folder."""
    return execution.load(Path("cluster.yaml"))[0].storage.rstrip("/")


def locate(path: str) -> Folder:
    """What a folder named on the command line stands for."""
    if "://" in path or Path(path).is_absolute() or not url():
        return path if "://" in path else Path(path)
    return f"{url()}/{Path(path).as_posix()}"


def leave_manifests(out: Folder) -> None:
    """Write into the project's folder what DVC tracks of an output at the URL: its manifests, or
    all files where there are none."""
    root = url()
    if not root or not str(out).startswith(f"{root}/"):
        return
    local, location = Path(str(out).removeprefix(f"{root}/")), Location(out)
    names = location.names()
    kept = [name for name in names if name in _MANIFESTS or name.startswith("_manifest-")]
    shutil.rmtree(local, ignore_errors=True)
    with new_folder(local) as new:
        for name in kept or names:
            location.get(name, new / name)
        (new / STORED).touch()
