"""The results of a project in DVC: those to send with a job, and those to copy back from it.

`dvc.lock` names each result by its digest. Only the results that a job's `dvc.lock` names are
copied from the URL. Each file's path must be inside the project, and its content must match its
digest. DVC itself puts the files in place.
"""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from elmo.errors import Damaged, ElmoError, NotFound
from elmo.io.atomic import new_file
from elmo.io.location import Location, in_parallel

from . import storage
from .job import DVC_CACHE, DVC_LOCK, JOBS, POINTER_FILE

_DIGEST = re.compile(r"[0-9a-f]{32}(\.dir)?")
_STAGE_NAME = re.compile(r"\w[\w@./-]*")
_SMALL_BYTES = 1_000_000  # larger files are not sent with a job


def parse_lock(lock: bytes) -> dict[str, Any]:
    """Return the stages of a `dvc.lock` by name; {} if it is not a valid one."""
    try:
        content = yaml.safe_load(lock)
    except yaml.YAMLError:
        return {}
    stages = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(stages, dict):
        return {}
    return {str(name): entry for name, entry in stages.items() if isinstance(entry, dict)}


def list_outs(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the outs of a stage in a `dvc.lock`; [] in a dvc.yaml, which has no digests."""
    outs = entry.get("outs")
    return [out for out in outs if isinstance(out, dict)] if isinstance(outs, list) else []


def files_to_send() -> dict[str, Path]:
    """Return the pointers and small results that a job at a URL needs, by their paths in the job's
    project. They are in DVC's cache or, if git keeps them, in the project."""
    paths: dict[str, Path] = {}
    lock = Path(DVC_LOCK)
    for entry in parse_lock(lock.read_bytes() if lock.exists() else b"").values():
        for out in list_outs(entry):
            digest, path = str(out.get("md5", "")), Path(str(out.get("path", "")))
            files = files_of_folder(digest) if digest.endswith(".dir") else {}
            if files is None or (POINTER_FILE not in files and out.get("size", 0) > _SMALL_BYTES):
                continue
            files_by_digest = {key: cache_path(key) for key in (digest, *files.values())}
            paths |= {
                _cache_key(key): file for key, file in files_by_digest.items() if file.is_file()
            }
            if path.is_file() and _md5(path.read_bytes()) == digest:
                storage.check_result_paths([str(path)])
                paths[str(path)] = path
    return paths


def copy_results(url: str, job: str, *, old_lock: bytes) -> list[str]:
    """Copy the results of a job at the `storage` URL into this project; return their paths.

    `old_lock` is the `dvc.lock` that was sent. Only results of stages that the job ran are changed.
    Raises `ElmoError`, and changes no result, if a name or digest is wrong, or if DVC refuses to
    overwrite a result here because it has no copy of it.
    """
    source = Location(f"{url}/{JOBS}/{job}")
    try:
        new_lock = source.read(DVC_LOCK)
    except FileNotFoundError:
        return []
    stages, lock = parse_lock(old_lock), Path(DVC_LOCK)
    new_stages = {n: entry for n, entry in parse_lock(new_lock).items() if entry != stages.get(n)}
    outs = [out for entry in new_stages.values() for out in list_outs(entry)]
    if not new_stages:
        return []
    _check_names(new_stages, outs)
    in_parallel(lambda out: _fetch_output(source, out), outs)
    current_lock = lock.read_bytes() if lock.exists() else b""
    if current_lock != old_lock:  # another job or a local run has changed it
        merged_lock = {"schema": "2.0", "stages": parse_lock(current_lock) | new_stages}
        new_lock = yaml.safe_dump(merged_lock, sort_keys=False, allow_unicode=True).encode()
    _write_file(lock, new_lock)
    process = subprocess.run(
        [sys.executable, "-m", "dvc", "checkout", *new_stages], capture_output=True, text=True
    )
    if process.returncode:
        if current_lock:
            _write_file(lock, current_lock)
        else:
            lock.unlink()  # DVC refuses an empty file
        reason = " ".join(process.stderr.split()).removeprefix("ERROR: ")[:400]
        raise ElmoError(f"{source}: its results cannot be copied here: {reason}")
    for out in outs:  # DVC does not write results that git keeps
        path = Path(out["path"])
        if not path.exists() or (path.is_file() and _md5(path.read_bytes()) != out["md5"]):
            _write_file(path, cache_path(out["md5"]).read_bytes())
    return [str(out["path"]) for out in outs]


def files_of_folder(digest: str, project: Path | None = None) -> dict[str, str] | None:
    """Return the digests of a folder's files by their paths in it; None if DVC's cache (see
    `cache_path`) does not have the folder."""
    path = cache_path(digest, project)
    return _parse_listing(path.read_bytes(), str(path)) if path.is_file() else None


def cache_path(digest: str, project: Path | None = None) -> Path:
    """Return the path in DVC's cache of the file or folder with this digest.

    The cache is this project's, or the one in the folder of another `project`.
    """
    if _DIGEST.fullmatch(digest) is None:
        raise Damaged(f"{DVC_LOCK}: {digest[:100]!r} is not a DVC digest")
    cache = project / DVC_CACHE if project else Path(_find_cache(Path.cwd()))
    return cache / _cache_key(digest).removeprefix(DVC_CACHE)


def _cache_key(digest: str) -> str:
    """Return the default path, in a project, of the file or folder with this digest."""
    return f"{DVC_CACHE}files/md5/{digest[:2]}/{digest[2:]}"


def _check_names(stages: Mapping[str, Any], outs: Iterable[Mapping[str, Any]]) -> None:
    """Refuse names that lead out of the project through `..`, hidden folders or links."""
    if bad_names := [name for name in stages if not _STAGE_NAME.fullmatch(name)]:
        raise ElmoError(f"{DVC_LOCK} of the job: {bad_names[0][:100]!r} is not a stage name")
    paths = [str(out.get("path", "")) for out in outs]
    storage.check_result_paths(paths)
    project_folder = Path.cwd().resolve()
    for path in paths:
        if not Path(path).resolve().is_relative_to(project_folder):
            raise ElmoError(f"{path}: a link points outside the project; nothing was written")


def _fetch_output(source: Location, out: Mapping[str, Any]) -> None:
    """Copy an output of a job into DVC's cache, with the files of a folder."""
    digest = str(out.get("md5", ""))
    content = _fetch_file(source, digest, str(out["path"]))
    if digest.endswith(".dir"):
        files = _parse_listing(content, str(out["path"]))
        storage.check_result_paths(files)
        for path, file_digest in files.items():
            _fetch_file(source, file_digest, f"{out['path']}/{path}")


def _fetch_file(source: Location, digest: str, path: str) -> bytes:
    """Copy a file into DVC's cache, unless it is there, and return its content."""
    target = cache_path(digest)
    if target.is_file():
        return target.read_bytes()
    try:
        content = source.read(_cache_key(digest))
    except FileNotFoundError:
        try:
            content = source.read(path)
        except FileNotFoundError:
            raise NotFound(f"{source}: has no {path}; submit again to make it") from None
    if _md5(content) != digest.removesuffix(".dir"):
        raise Damaged(f"{source}: {path} does not match its {DVC_LOCK}; submit again")
    _write_file(target, content)
    return content


def _parse_listing(listing: bytes, source: str) -> dict[str, str]:
    try:
        return {str(entry["relpath"]): str(entry["md5"]) for entry in json.loads(listing)}
    except (ValueError, TypeError, KeyError):
        raise Damaged(f"{source}: is not a folder of DVC's cache") from None


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as new_path:
        new_path.write_bytes(content)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@cache
def _find_cache(project: Path) -> str:
    process = subprocess.run([sys.executable, "-m", "dvc", "cache", "dir"], capture_output=True)
    if process.returncode:
        reason = " ".join(process.stderr.decode(errors="replace").split())[-300:]
        raise ElmoError(f"{project}: DVC's cache can't be found: {reason}")
    return process.stdout.decode().strip()
