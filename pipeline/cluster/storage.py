"""Data and models at a URL in place of the project's folder, for clusters without a shared one.

With `storage: s3://bucket/elmo` the path `data/shards` of a command or of dvc.yaml stands for
`s3://bucket/elmo/data/shards`. In the project's own folder a stage leaves the manifests of what it
wrote there: small files, which hold the digests of all others, so DVC sees what has changed.
"""

import re
from pathlib import Path

from elmo.io.atomic import check_folder, new_folder
from elmo.io.location import Folder, Location

from ..settings import cluster as execution
from .job import STORED

_MANIFESTS = ("config.json", "manifest.json")


def url() -> str:
    """The URL that is in force, without a slash at its end; empty: the project's folder."""
    return execution.load(Path("cluster.yaml"))[0].storage.rstrip("/")


def locate(path: str) -> Folder:
    """Return what a folder named on the command line stands for."""
    if "://" in path or Path(path).is_absolute() or not url():
        return path if "://" in path else Path(path)
    return f"{url()}/{Path(path).as_posix()}"


def leave_manifests(out: Folder) -> None:
    """Write into the project's folder what DVC tracks of an output at the URL: its manifests, or
    all files where there are none."""
    local = _local(out)
    if local is None:
        return
    location = Location(out)
    names = location.names()
    kept = [name for name in names if name in _MANIFESTS or name.startswith("_manifest-")] or names
    with new_folder(local, ours=_marks(local), also=_left(local)) as new:
        for name in kept:
            location.get(name, new / name)
        (new / STORED).write_text("\n".join(kept), encoding="utf-8")


def check_left(out: Folder) -> None:
    """Refuse an output at the URL whose folder here holds what `leave_manifests` did not leave."""
    local = _local(out)
    if local is not None:
        check_folder(local, ours=_marks(local), also=_left(local))


def _local(out: Folder) -> Path | None:
    """The folder of the project that stands for an output at the URL; None for any other."""
    root = url()
    inside = root and str(out).startswith(f"{root}/")
    return Path(str(out).removeprefix(f"{root}/")) if inside else None


def _marks(local: Path) -> tuple[str, ...]:
    return (STORED,) if (local / STORED).is_file() else ()


def _left(local: Path) -> str:
    """A regular expression of the files that were left in the project's folder the last time."""
    if not _marks(local):
        return ""
    names = (local / STORED).read_text(encoding="utf-8").splitlines()
    return "|".join(map(re.escape, names)) or r"(_?manifest.*|config)\.json"
