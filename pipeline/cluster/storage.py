"""Outputs at a URL (the `storage` setting), for clusters that share no folder.

With `storage: s3://bucket/elmo`, the files of a stage's output `data/shards/general` are written to
a new folder `s3://bucket/elmo/data/shards/general/<token>/`, where they stay. Once all are written,
`s3://bucket/elmo/data/shards/general/<digest>.json` names that folder and each file with its size.
The digest is that of the output's manifests, so equal outputs have the same name. In the project's
own folder, the stage leaves a pointer: the manifests, and this name in `.stored`. DVC tracks the
pointer, so each commit names its own outputs.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from elmo.errors import Damaged, ElmoError, NotFound
from elmo.io.folders import check_output_folder, new_folder
from elmo.io.location import Location, in_parallel
from elmo.io.records import digest, json_bytes, read_record

from ..settings import cluster as cluster_settings
from .job import POINTER_FILE, PROJECT_VARIABLE

UNFINISHED_FOLDER = "unfinished"  # at the URL: work in progress, one folder per project
UNFINISHED_RECORDS = "begun"  # in the project's folder there: a record of each unfinished output
PROJECT_ID_FILE = "project-id"  # in the project's work folder
_WORK_FOLDER = Path("work")
_DVC_RUNS = Path(".dvc", "cache", "runs")  # DVC's records of earlier runs
_INNER = "__elmo"  # `elmo.store.manifest.INNER_FOLDER`, which is slow to import
_MANIFEST = re.compile(rf"(config|manifest|{_INNER}/manifest)\.json")


class Pointer(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `.stored`: the output at the `storage` URL that a project folder points to.

    `folder` is its name below the URL, `data/shards/general/<digest>`. `files` are the files beside
    `.stored`: copies of the output's manifests or, if it has none, of all its files.
    """

    folder: str
    files: list[str]


FolderName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]  # with an output's files


class StoredOutput(msgspec.Struct, forbid_unknown_fields=True, tag="elmo-output", tag_field="kind"):
    """The content of `<digest>.json` at the URL: the files of an output.

    `folder` is their folder, beside this file. `sizes` has the size of each file in bytes, by its
    path in the folder.
    """

    folder: FolderName
    sizes: dict[str, int]


class UnfinishedOutput(
    msgspec.Struct, forbid_unknown_fields=True, tag="elmo-unfinished", tag_field="kind"
):
    """The content of a file in `unfinished/`: an unfinished output.

    `folder` is the name of the folder with its files, `depends` a digest of all its dependencies.
    """

    folder: FolderName
    depends: str


def storage_url() -> str:
    """Return the `storage` URL without a slash at its end; empty if none is set."""
    return cluster_settings.load(Path("cluster.yaml"))[0].storage.rstrip("/")


def resolve_input(folder: Location, url: str | None = None) -> Location:
    """Return the location to read a folder of the project from: itself, or the output it points to.

    `url` is the `storage` URL, "" for none (default: the one in the settings). Raises `ElmoError`
    if the folder is a pointer and there is no URL, or if there is a URL and no folder.
    """
    local_path = folder.local
    if local_path is None or local_path.is_absolute():
        return folder
    url = storage_url() if url is None else url
    if not folder.exists(POINTER_FILE):
        if url and not local_path.exists():
            raise NotFound(
                f"{folder}: this project has no such output at {url}; run the stage that makes it"
            )
        return folder
    if not url:
        raise ElmoError(f"{folder}: is stored at a URL; set storage in cluster.yaml to that URL")
    name = read_pointer(local_path).folder
    output = read_output(url, name)
    if output is None:
        raise NotFound(f"{folder}: {url}/{name}.json is missing; make it again: elmo run")
    return files_folder(url, name, output)


def resolve_work(work: Any, url: str) -> Any:
    """Return the location of a stage's work in progress: at the URL, if there is one."""
    name = _path_below_url(work, url)
    return Location(f"{_work_url(url)}/{name}") if name else work


def begin_output(out: Any, url: str, *, depends: str, resumes: bool) -> Any:
    """Return the folder at the URL in which to write an output; `out` if there is no URL.

    `out` is its folder in the project, `depends` a digest of everything it depends on. A stage that
    `resumes` gets the folder of its killed run, if the digest is the same; files of other killed
    runs are deleted. Raises `ElmoError` if `out` has files that `publish_output` did not write.
    """
    name = _path_below_url(out, url)
    if not name:
        return out
    check_output_folder(out, **_replaceable_files(out.local))
    record_folder = Location(_work_url(url)) / UNFINISHED_RECORDS
    folder_at_url = Location(f"{url}/{name}")
    record = _read_or_none(record_folder, f"{name}.json", UnfinishedOutput)
    if record is not None and not _is_published(folder_at_url, record.folder):
        if resumes and record.depends == depends:
            files = folder_at_url / record.folder
            files.delete_all(filter(_MANIFEST.fullmatch, files.sizes()))
            return files
        (folder_at_url / record.folder).remove()
    token = secrets.token_hex(8)
    record_folder.write_json(f"{name}.json", msgspec.to_builtins(UnfinishedOutput(token, depends)))
    return folder_at_url / token


def published_location(out: Location, url: str | None = None) -> Location:
    """Return the location of the files of a complete output at `out` once it is published.

    It is `out`, or the folder of an equal output that already exists. `url` is the `storage` URL
    (default: the one in the settings).
    """
    url = storage_url() if url is None else url
    if not url or not out.url.startswith(f"{url}/"):
        return out
    name = _published_name(out, url)
    output = _read_whole_output(url, name)
    return out if output is None else files_folder(url, name, output)


def publish_output(out: Any, data_folder: Any, url: str) -> None:
    """Name a complete output at the URL by its digest, and write the pointer in the project.

    `out` is its folder in the project, `data_folder` the one that `begin_output` returned; if they
    are the same, there is nothing to do. If an equal output is complete at the URL, it is kept and
    the new one deleted.
    """
    if out == data_folder:
        return
    manifests, name = _list_manifests(data_folder), _published_name(data_folder, url)
    record = StoredOutput(data_folder.folder_name, data_folder.sizes())
    folder_at_url, file = _folder_at_url(url, name), f"{Path(name).name}.json"
    while not folder_at_url.create(file, json_bytes(msgspec.to_builtins(record), source=name)):
        if (whole_output := _read_whole_output(url, name)) is not None:
            record = whole_output
            break
        folder_at_url.delete(file)  # its files are incomplete
    files = folder_at_url / record.folder
    out.local.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out, **_replaceable_files(out.local)) as new_path:
        files.get_all(manifests, new_path)
        pointer = msgspec.to_builtins(Pointer(name, manifests))
        (new_path / POINTER_FILE).write_bytes(json_bytes(pointer, source=POINTER_FILE))
    if files != data_folder:
        data_folder.remove()
    (Location(_work_url(url)) / UNFINISHED_RECORDS).delete(f"{_path_below_url(out, url)}.json")


def find_pointers(project: Path = Path()) -> dict[Path, Pointer]:
    """Return the folders of a project whose outputs are at the URL, each with its `Pointer`."""

    def raise_error(error: OSError) -> None:
        raise error

    paths = []
    for folder, subfolders, files in os.walk(project, onerror=raise_error):
        subfolders[:] = [name for name in subfolders if name not in (".dvc", ".git")]
        paths += [Path(folder)] if POINTER_FILE in files else []
    return {folder: read_pointer(folder) for folder in sorted(paths)}


def delete_lost_pointers(url: str) -> list[str]:
    """Delete pointers to outputs that are incomplete at the URL, so that DVC runs their stages.

    Returns the deleted folders. Raises `ElmoError`, and deletes nothing, if several outputs are all
    missing, since the URL may be the wrong one, or if a folder has other files too.
    """
    pointers = find_pointers()
    outputs = in_parallel(lambda p: _read_whole_output(url, p.folder), pointers.values())
    folders = [folder for folder, output in zip(pointers, outputs, strict=True) if output is None]
    if len(folders) == len(pointers) > 1:
        raise ElmoError(
            f"{url}: has none of this project's {len(folders)} outputs; correct the setting "
            f"storage, or make lost ones again: rm -r {' '.join(map(str, folders))} && elmo run"
        )
    for folder in folders:
        check_output_folder(Location(folder), **_replaceable_files(folder))
    for folder in folders:
        shutil.rmtree(folder)
    _forget_runs({folder.as_posix() for folder in folders})
    return [folder.as_posix() for folder in folders]


def _forget_runs(folders: set[str]) -> None:
    """Delete DVC's records of the runs that made these folders, which no longer exist."""
    outs = [f"path: {folder}\n" for folder in folders]
    for path in _DVC_RUNS.glob("*/*/*") if folders else ():
        if any(out in path.read_text(encoding="utf-8", errors="replace") for out in outs):
            path.unlink()


def read_pointer(local: Path) -> Pointer:
    """Return the pointer in a folder of the project."""
    try:
        return read_record(local / POINTER_FILE, Pointer)
    except ElmoError as error:
        raise Damaged(
            f"{local / POINTER_FILE}: is not a pointer of this version ({error}); delete {local} "
            "and run the stage again"
        ) from None


def read_output(url: str, name: str) -> StoredOutput | None:
    """Return the content of `<name>.json` at the URL; None if it is missing."""
    output = _read_or_none(Location(url), f"{name}.json", StoredOutput)
    if output is not None:
        check_result_paths(output.sizes)
    return output


def check_result_paths(names: Iterable[str]) -> None:
    """Raise `ElmoError` unless all names are paths inside a project or output: relative, without
    `..`, and not hidden, except `.stored`."""
    for name in names:
        parts = name.split("/")
        if any(part in ("", "..") or part[0] == "." and part != POINTER_FILE for part in parts):
            raise ElmoError(f"{name[:200]!r}: is not the name of a result; nothing was written")


def _read_whole_output(url: str, name: str) -> StoredOutput | None:
    """Return the output `name` if all its files are at the URL with the right sizes, else None."""
    output = read_output(url, name)
    sizes = files_folder(url, name, output).sizes() if output is not None else {}
    is_whole = output is not None and output.sizes.items() <= sizes.items()
    return output if is_whole else None


def _is_published(folder_at_url: Location, folder: str) -> bool:
    """Tell whether a published output in `folder_at_url` has its files in `folder`."""

    def read(name: str) -> StoredOutput | None:
        try:
            return folder_at_url.read_record(name, StoredOutput)
        except ElmoError:  # deleted meanwhile, or not an output's record
            return None

    names = [name for name in folder_at_url.names() if name.endswith(".json")]
    outputs = in_parallel(read, names)
    return any(output is not None and output.folder == folder for output in outputs)


def files_folder(url: str, name: str, output: StoredOutput) -> Location:
    """Return the folder at the URL of the files of the output `name`."""
    return _folder_at_url(url, name) / output.folder


def _folder_at_url(url: str, name: str) -> Location:
    return Location(f"{url}/{name.rpartition('/')[0]}")


def _published_name(location: Location, url: str) -> str:
    """Return an output's name at the URL: its parent folder and the digest of its manifests."""
    manifests = _list_manifests(location)
    if not manifests:
        raise ElmoError(f"{location}: is empty; nothing was published")
    digests = dict(zip(manifests, in_parallel(location.sha256, manifests), strict=True))
    parent = location.url.removeprefix(f"{url}/").rpartition("/")[0]
    return f"{parent}/{digest(digests)[:16]}"


def _list_manifests(location: Location) -> list[str]:
    """Return the manifests of an output, or all its files if it has none."""
    paths = list(location.sizes())
    return [path for path in paths if _MANIFEST.fullmatch(path)] or paths


def _work_url(url: str) -> str:
    """Return the folder at the URL for this project's work in progress.

    Its name is the project's id.
    """
    project = os.environ.get(PROJECT_VARIABLE) or project_id()
    return f"{url}/{UNFINISHED_FOLDER}/{project}"


def project_id() -> str:
    """Return the project's id, which the first call writes into the work folder of the project."""
    work = Location(_WORK_FOLDER)
    if not work.exists(PROJECT_ID_FILE):
        _WORK_FOLDER.mkdir(exist_ok=True)
        work.create(PROJECT_ID_FILE, secrets.token_hex(8).encode())
    return work.read(PROJECT_ID_FILE).decode()


def _path_below_url(folder: Any, url: str) -> str:
    """Return the relative path of a folder of the project, to append to the URL; else ""."""
    if not url or folder is None or folder.local is None or folder.local.is_absolute():
        return ""
    path: str = folder.local.as_posix()
    return path


def _read_or_none(location: Location, file: str, record_type: Any) -> Any:
    try:
        return location.read_record(file, record_type)
    except NotFound:
        return None


def _replaceable_files(local: Path) -> dict[str, Any]:
    """Return the arguments of `check_output_folder` that let a pointer's own files be replaced."""
    if not (local / POINTER_FILE).is_file():
        return {"required": (), "pattern": ""}
    pattern = "|".join(map(re.escape, read_pointer(local).files))
    return {"required": (POINTER_FILE,), "pattern": pattern or _MANIFEST.pattern}
