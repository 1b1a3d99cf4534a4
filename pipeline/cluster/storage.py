"""Outputs at a URL (the `storage` setting), for clusters that share no folder.

With `storage: s3://bucket/elmo` the output `data/shards/general` of a stage lies at
`s3://bucket/elmo/data/shards/general/<digest>/` and is never written again: the digest is that of
its manifest. In the project's own folder the stage leaves a pointer: the manifests, and the name of
that folder in `.stored`. DVC tracks them, so a commit, a branch and a colleague each read what they
name. What is in progress lies below `unfinished/`, in a folder for each project.
"""

import hashlib
import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elmo.errors import Damaged, ElmoError, NotFound
from elmo.io.atomic import new_file
from elmo.io.folders import new_folder
from elmo.io.location import Location, in_parallel
from elmo.io.outputs import check_folder
from elmo.io.records import digest, json_bytes, read_record

from ..settings import cluster as execution
from .job import LEASE, PROJECT, PROJECT_FILES, STORED

if TYPE_CHECKING:
    from ..stages.stage import Stage

UNFINISHED = "unfinished"
_INSIDE = "__elmo"  # `elmo.store.manifest.INNER_FOLDER`, whose import takes as long as pyarrow's
_MANIFESTS = re.compile(rf"(config|manifest|{_INSIDE}/manifest)\.json")


class Pointer(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `.stored`: where an output of the project lies, at the `storage` URL.

    `folder` is its folder below the URL. `files` are the files beside `.stored`, copies of the
    output's manifests, or of all its files where it has none.
    """

    folder: str
    files: list[str]


def root() -> str:
    """Return the `storage` URL without a slash at its end; empty where none is set."""
    return execution.load(Path("cluster.yaml"))[0].storage.rstrip("/")


def read_from(folder: Location, url: str | None = None) -> Location:
    """Return where to read a folder of the project: itself, or the output it is a pointer to.

    `url` is the `storage` URL, "" for none; None takes the one that is set. Raises `ElmoError`
    where the folder is a pointer and there is no URL, or is not there though there is one.
    """
    local = folder.local
    if local is None or local.is_absolute():
        return folder
    url = root() if url is None else url
    if not folder.exists(STORED):
        if url and not local.exists():
            raise NotFound(
                f"{folder}: this project names nothing of it at {url}; run the stage that makes it"
            )
        return folder
    if not url:
        raise ElmoError(f"{folder}: lies at a URL; name that as storage in cluster.yaml")
    return Location(f"{url}/{_pointer(local).folder}")


def resolved(stage: "Stage", given: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return a stage's arguments, `given` by name, with the folders of the project replaced.

    Inputs become the folders that their pointers name, outputs folders of work in progress at the
    `storage` URL `url`; with an empty one nothing is replaced.
    """
    made: dict[str, Any] = dict(given)
    for one in stage.inputs:
        if one.kind == "folder" and made[one.name] is not None:
            made[one.name] = read_from(made[one.name], url)
    for one in (*stage.outputs, *filter(None, [stage.work])):
        if one.kind == "folder" and (name := _name(made[one.name], url)):
            made[one.name] = Location(f"{_own(url)}/{name}")
    return made


def begin(stage: "Stage", named: Any, written: Any) -> None:
    """Delete what a killed run left of an output at the URL, unless the stage resumes from it.

    `named` is the output's folder in the project, `written` what `resolved` gives for it; nothing
    is done where they are equal. Raises `ElmoError` where `named` has files that `publish` did not
    write.
    """
    if named != written:
        check_folder(named, **_left(named.local))
        if stage.name != "features":
            written.remove()


def published_location(out: Location, url: str | None = None) -> Location:
    """Return where `publish` will put a complete output that now lies at `out`.

    `url` is the `storage` URL; None takes the one that is set. For an output that is not in
    progress there it is `out` itself.
    """
    url = root() if url is None else url
    own = f"{_own(url)}/"
    if not url or not out.url.startswith(own):
        return out
    name, sums = out.url.removeprefix(own), {one: out.sha256(one) for one in _kept(out)}
    return Location(f"{url}/{name}/{digest(sums)[:16]}")


def publish(named: Any, written: Any, url: str) -> None:
    """Move a complete output to its final folder at the URL, and write a pointer in the project.

    `named` is the output's folder in the project, `written` what `resolved` gives for it; nothing
    is done where they are equal. The manifests come last. An equal output that is there already
    stays as it is.
    """
    if named == written:
        return
    kept, target = _kept(written), published_location(written, url)
    if not set(kept).issubset(target.tree()):
        for names in (written.tree().keys() - set(kept), kept):
            target.adopt_all({name: name for name in sorted(names)}, written)
    folder = target.url.removeprefix(f"{url}/")
    named.local.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(named, **_left(named.local)) as new:
        target.get_all(kept, new)
        (new / STORED).write_bytes(json_bytes({"folder": folder, "files": kept}, source=STORED))
    written.remove()


def pointers() -> dict[Path, Pointer]:
    """Return the folders of the project whose outputs lie at the URL, each with its `Pointer`."""
    marked = []
    for folder, below, files in os.walk("."):
        below[:] = [one for one in below if one != ".dvc"]
        marked += [Path(folder)] if STORED in files else []
    return {folder: _pointer(folder) for folder in sorted(marked)}


def forget_lost(url: str) -> list[str]:
    """Delete the pointers whose outputs are gone from the URL, so that DVC runs their stages.

    Returns the deleted folders.
    """
    known = pointers()
    names = in_parallel(lambda one: Location(f"{url}/{one.folder}").tree(), known.values())
    lost = []
    for (local, pointer), there in zip(known.items(), names, strict=True):
        if not set(pointer.files).issubset(there):
            shutil.rmtree(local)
            lost.append(local.as_posix())
    if lost:  # or DVC would take these pointers from what it remembers of earlier runs
        shutil.rmtree(Path(".dvc", "cache", "runs"), ignore_errors=True)
    return lost


def bring_back(url: str) -> int:
    """Copy the results of a job from the `storage` URL into this project; return how many files.

    Raises `ElmoError` where an output of this machine is in the way. The project's settings and
    dvc.yaml, which were sent to the job, are not copied.
    """
    kept = Location(f"{url}/project")
    files = [Path(name) for name in kept.tree() if name not in (*PROJECT_FILES, LEASE)]
    outputs = {file.parent for file in files if file.name == STORED}
    for local in sorted(outputs):
        if local.exists() and not (local / STORED).is_file():
            raise ElmoError(
                f"{local}: holds an output that was made here, and the job's lies at {url}; delete "
                "it, and run `elmo run`"
            )
    for local in outputs:
        shutil.rmtree(local, ignore_errors=True)
    for folder in {file.parent for file in files}:
        folder.mkdir(parents=True, exist_ok=True)
    in_parallel(lambda file: _get(kept, file), files)
    return len(files)


def _own(url: str) -> str:
    """The folder of what this project has in progress."""
    who = os.environ.get(PROJECT) or f"{socket.gethostname()}:{Path.cwd()}"
    return f"{url}/{UNFINISHED}/{hashlib.sha256(who.encode()).hexdigest()[:8]}"


def _name(folder: Location | None, url: str) -> str:
    """The name below the storage's URL of a folder of the project; empty for any other."""
    if not url or folder is None or folder.local is None or folder.local.is_absolute():
        return ""
    return folder.local.as_posix()


def _kept(location: Location) -> list[str]:
    """The manifests of an output, or all its files where it has none."""
    paths = list(location.tree())
    return [path for path in paths if _MANIFESTS.fullmatch(path)] or paths


def _get(kept: Location, file: Path) -> None:
    """Copy a file, unless it is there under a name that follows from its content."""
    if ".dvc" in file.parts and file.exists():
        return
    with new_file(file) as new:
        kept.get(file.as_posix(), new)


def _pointer(local: Path) -> Pointer:
    try:
        return read_record(local / STORED, Pointer)
    except ElmoError as error:
        raise Damaged(
            f"{local / STORED}: is no pointer of this version ({error}); delete {local}, and the "
            "stage makes it again"
        ) from None


def _left(local: Path) -> dict[str, Any]:
    """The arguments of `check_folder` for the files that were left in a pointer's folder."""
    if not (local / STORED).is_file():
        return {"ours": (), "also": ""}
    files = "|".join(map(re.escape, _pointer(local).files))
    return {"ours": (STORED,), "also": files or _MANIFESTS.pattern}
