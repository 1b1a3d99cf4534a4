"""Find unused outputs at the `storage` URL, which no git object, worktree or job names.

Git names outputs through DVC: `dvc.lock` has the digest of each pointer's folder, and DVC's cache
has its content. All git objects are read, because git simplifies the history of a path.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from elmo.errors import ElmoError
from elmo.io.location import Location, in_parallel
from elmo.io.records import parse_record

from . import results, storage
from .job import DVC_LOCK, JOBS, POINTER_FILE

_OUTPUT = re.compile(r"(.+/[0-9a-f]{16})\.json")
_MAX_LOCK_BYTES = 16_000_000  # larger files are no dvc.lock


class UnusedFiles(NamedTuple):
    """The unused outputs at the URL by name, each with the paths of its files (its record first).
    `unknown_count` counts the folders in `dvc.lock` files whose content is not in DVC's cache.
    """

    outputs: dict[str, list[str]]
    unknown_count: int


def find_unused(url: str) -> UnusedFiles:
    """Return the outputs at the `storage` URL that nothing names, without deleting them.

    What can name an output: the pointers and `dvc.lock` of this project, in any worktree of its
    repository and in DVC's experiments; any `dvc.lock` among git's objects; the jobs at the URL;
    and work in progress. Raises `ElmoError` if one of these can't be read.
    """
    sizes = Location(url).sizes()
    outputs = dict(_list_outputs(url, sizes))
    locks, names = _read_git_locks(), set()
    projects = list(_list_projects())
    for project in projects:
        names |= {pointer.folder for pointer in storage.find_pointers(project).values()}
        if (project / DVC_LOCK).exists():
            locks.add((project / DVC_LOCK).read_bytes())
    pointers = [
        name for name in sizes if name.startswith(f"{JOBS}/") and name.endswith(f"/{POINTER_FILE}")
    ]
    for name, pointer in zip(pointers, in_parallel(Location(url).read, pointers), strict=True):
        names.add(parse_record(pointer, storage.Pointer, source=f"{url}/{name}").folder)
    entries = [entry for lock in locks for entry in results.parse_lock(lock).values()]
    outs = {str(out.get("md5", "")) for entry in entries for out in results.list_outs(entry)}
    digests = {digest for digest in outs if digest.endswith(".dir")}
    pointer_names = [_read_pointer(digest, projects) for digest in digests]
    names |= {name for name in pointer_names if name}
    record_file = re.compile(
        rf"{storage.UNFINISHED_FOLDER}/[^/]+/{storage.UNFINISHED_RECORDS}/(.+)\.json"
    )
    unfinished_outputs = {
        (match[1], Location(url).read_record(name, storage.UnfinishedOutput).folder)
        for name in sizes
        if (match := record_file.fullmatch(name))
    }
    unused = {}
    for name, output in outputs.items():
        folder = name.rpartition("/")[0]
        if name not in names and (folder, output.folder) not in unfinished_outputs:
            files = [f"{folder}/{output.folder}/{file}" for file in output.sizes]
            unused[name] = [f"{name}.json", *(file for file in files if file in sizes)]
    return UnusedFiles(unused, pointer_names.count(None))


def remove(url: str, unused: UnusedFiles) -> None:
    """Delete the unused outputs at the URL: their records, then their files.

    Raises `ElmoError` if not all outputs that git names are known here.
    """
    if unused.unknown_count:
        raise ElmoError(
            f"{unused.unknown_count} outputs of commits are not in DVC's cache, so their files are "
            "unknown; run: dvc fetch --all-commits"
        )
    if _run_git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise ElmoError("this clone has no earlier commits; run: git fetch --unshallow --all")
    if b"promisor" in _run_git("config", "--list", "--name-only"):
        raise ElmoError("this clone is partial; run this command in a full clone")
    location = Location(url)
    location.delete_all(files[0] for files in unused.outputs.values())
    location.delete_all(file for files in unused.outputs.values() for file in files[1:])


def _list_outputs(url: str, sizes: dict[str, int]) -> Iterator[tuple[str, storage.StoredOutput]]:
    """Yield the outputs at the URL: files that are a valid `StoredOutput` record."""
    prefixes = (f"{JOBS}/", f"{storage.UNFINISHED_FOLDER}/")
    names = [m[1] for n in sizes if (m := _OUTPUT.fullmatch(n)) and not n.startswith(prefixes)]

    def read_output(name: str) -> storage.StoredOutput | None:
        try:
            return storage.read_output(url, name)
        except ElmoError:  # not an output's record
            return None

    for name, output in zip(names, in_parallel(read_output, names), strict=True):
        if output is not None:
            yield name, output


def _list_projects() -> Iterator[Path]:
    """Yield this project's folder in each worktree of the repository and in DVC's experiments."""
    subfolder = _run_git("rev-parse", "--show-prefix").decode().strip()
    yield Path()
    for line in _run_git("worktree", "list", "--porcelain").decode().splitlines():
        folder = Path(line.removeprefix("worktree "), subfolder)
        if line.startswith("worktree ") and folder.is_dir():
            yield folder
    experiments = Path(".dvc", "tmp", "exps")
    yield from experiments.glob("*/") if experiments.is_dir() else ()


def _read_git_locks() -> set[bytes]:
    """Return the content of each `dvc.lock` among git's objects, reachable or not."""
    listing = _run_git("cat-file", "--batch-all-objects", "--batch-check", "--unordered")
    rows = [line.split() for line in listing.decode().splitlines()]
    blobs = [name for name, kind, size in rows if kind == "blob" and int(size) < _MAX_LOCK_BYTES]
    contents = _run_git("cat-file", "--batch", stdin="\n".join(blobs).encode())
    locks, start = set(), 0
    for _ in blobs:
        line_end = contents.index(b"\n", start)
        content_end = line_end + 1 + int(contents[start:line_end].split()[2])
        if re.match(rb"schema:|stages:", content := contents[line_end + 1 : content_end]):
            locks.add(content)
        start = content_end + 1
    return locks


def _read_pointer(digest: str, projects: Iterable[Path]) -> str | None:
    """Return the output that a folder in DVC's caches points to: "" if it is no pointer, None if no
    project's cache has the folder."""
    for project in (None, *projects):
        files = results.files_of_folder(digest, project)
        if files is None:
            continue
        if POINTER_FILE not in files:
            return ""
        if (file := results.cache_path(files[POINTER_FILE], project)).is_file():
            return parse_record(file.read_bytes(), storage.Pointer, source=str(file)).folder
    return None


def _run_git(*command: str, stdin: bytes = b"") -> bytes:
    process = subprocess.run(["git", *command], input=stdin, capture_output=True)
    if process.returncode:
        reason = " ".join(process.stderr.decode(errors="replace").split())[-300:]
        raise ElmoError(f"the commits of this folder can't be read: {reason}")
    return process.stdout
