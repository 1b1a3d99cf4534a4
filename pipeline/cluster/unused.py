"""Unused outputs at the `storage` URL: no commit of this clone and no project of a job names them.

A commit names them through DVC: `dvc.lock` has the digest of each pointer's folder, and DVC's cache
has its content.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from elmo.errors import ElmoError
from elmo.io.location import Location, in_parallel
from elmo.io.records import parse_record

from . import storage
from .job import STORED

_DIGEST = re.compile(r"[0-9a-f]{16}")
_OTHERS = ("project", storage.UNFINISHED)  # folders at the URL that hold no outputs


class Found(NamedTuple):
    """The unused outputs at the URL, and the number of commits' outputs that DVC's cache lacks.

    `unused` has their folders below the URL. What the `unknown` ones name is not known.
    """

    unused: list[str]
    unknown: int


def find(url: str) -> Found:
    """Return the outputs at the `storage` URL that nothing names; nothing is deleted.

    Outputs are named by this folder, all commits of its repository, and the project of jobs at the
    URL.
    """
    named = {pointer.folder for pointer in storage.pointers().values()}
    named |= set(_of_job(Location(f"{url}/project")))
    of_commits = [_folder(digest) for digest in _locked()]
    named |= {folder for folder in of_commits if folder}
    unused = [name for name in sorted(_outputs(Location(url), "")) if name not in named]
    return Found(unused, of_commits.count(None))


def remove(url: str, found: Found) -> None:
    """Delete the unused outputs at the URL.

    Raises `ElmoError` where commits can't all be read here, since one of them may name an output.
    """
    if found.unknown:
        raise ElmoError(
            f"{found.unknown} outputs of commits are not in DVC's cache, so what they name is not "
            "known; run: dvc fetch --all-commits"
        )
    if _call("git", "rev-parse", "--is-shallow-repository").strip() == "true":
        raise ElmoError("this clone lacks earlier commits; run: git fetch --unshallow --all")
    in_parallel(lambda name: Location(f"{url}/{name}").remove(), found.unused)


def _outputs(location: Location, name: str) -> Iterator[str]:
    for folder in location.folders():
        if not name and folder in _OTHERS:
            continue
        inside = f"{name}/{folder}".lstrip("/")
        if _DIGEST.fullmatch(folder):
            yield inside
        else:
            yield from _outputs(location / folder, inside)


def _of_job(kept: Location) -> Iterator[str]:
    """The outputs that the project of jobs at the URL names."""
    marks = [name for name in kept.tree() if name.endswith(f"/{STORED}") and name[0] != "."]
    for name, data in zip(marks, in_parallel(kept.read, marks), strict=True):
        yield parse_record(data, storage.Pointer, source=kept.name(name)).folder


def _locked() -> set[str]:
    """The digests of the folders among the outputs of `dvc.lock`, here and in every commit."""
    texts = [Path("dvc.lock").read_text(encoding="utf-8")] if Path("dvc.lock").exists() else []
    commits = _call("git", "log", "--all", "--format=%H", "--", "dvc.lock").split()
    texts += [_call("git", "show", f"{commit}:./dvc.lock") for commit in commits]
    locks = [yaml.safe_load(text) or {} for text in texts]
    stages = [stage for lock in locks for stage in (lock.get("stages") or {}).values()]
    outs = [out for stage in stages for out in stage.get("outs") or ()]
    return {str(out["md5"]) for out in outs if str(out.get("md5", "")).endswith(".dir")}


def _folder(digest: str) -> str | None:
    """Return what a folder of DVC's cache points to: empty where it is no pointer, None where
    DVC's cache does not have it."""
    listed = _cached(digest)
    if not listed.is_file():
        return None
    entries = json.loads(listed.read_text(encoding="utf-8"))
    mark = next((entry["md5"] for entry in entries if entry["relpath"] == STORED), None)
    if mark is None:
        return ""
    if not _cached(mark).is_file():
        return None
    file = _cached(mark)
    return parse_record(file.read_bytes(), storage.Pointer, source=str(file)).folder


def _cached(digest: str) -> Path:
    return Path(_cache_of(Path.cwd()), "files", "md5", digest[:2], digest[2:])


@cache
def _cache_of(project: Path) -> str:
    return _call(sys.executable, "-m", "dvc", "cache", "dir").strip()


def _call(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = " ".join(done.stderr.split())[-300:]
        raise ElmoError(f"what the commits of this folder name can't be read: {said}")
    return done.stdout
