"""The program of a submitted Ray job, sent as `elmo_job.py`; it needs only the standard library.

The job's folder also has `environment.json` and, unless the cluster has its own checkout, the code,
dvc.yaml and params.yaml. For work at a URL, it has the folder `state`: dvc.lock and the files of
DVC's cache that dvc.lock names.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
PROJECT_FILES = ("dvc.yaml", "params.yaml")
STATE_FOLDER = "state"  # the folder with dvc.lock and its cached files, for a project at a URL
DVC_LOCK = "dvc.lock"
DVC_CACHE = ".dvc/cache/"  # files by their digests, and records of earlier runs
JOBS = "jobs"  # at a URL, the folder with a project for each job
ENVIRONMENT_FILE = "environment.json"
POINTER_FILE = ".stored"  # marks a folder of the project whose data is at a URL
JOB_VARIABLE = "ELMO_JOB"  # the id of a submitted job
PROJECT_VARIABLE = "ELMO_PROJECT"  # the id of the project, which names its work folder at a URL
# DVC's cache and the project share their files, since no stage changes a file in place.
CACHE_LINK_TYPES = ("cache.type", "hardlink,reflink,symlink,copy")  # the first copies nothing
_DELETE_SECONDS = 30.0  # for all nodes to delete environment.json
_UPLOAD_SECONDS = 15.0  # between two uploads of changed files of the project
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


def set_environment() -> None:
    """Set the environment variables sent with the job; Ray calls this in each of its processes.

    They are in a file, not in the job's runtime_env, because Ray shows and logs that.
    """
    file = PACKAGE / ENVIRONMENT_FILE
    if file.exists():
        os.environ.update(json.loads(file.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    """Run `arguments`, FOLDER and a command, and return the exit code of the command in FOLDER.

    FOLDER `-` is the folder that Ray unpacked for the job. If FOLDER is a URL, the project is in a
    temporary folder on this machine while the command runs, and copied to `jobs/<id>` at the URL.
    """
    folder, *command = arguments
    set_environment()
    try:
        return _run_in(folder, command)
    finally:
        _delete_environment()


def _run_in(folder: str, command: list[str]) -> int:
    is_at_url = "://" in folder
    project = PACKAGE if folder == "-" else Path(tempfile.mkdtemp() if is_at_url else folder)
    if not project.is_dir():
        print(f"error: {os.uname().nodename} has no folder {project}; mount it there", flush=True)
        return 1
    changes = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    changes["DVC_NO_ANALYTICS"] = "1"
    if has_code := (PACKAGE / "elmo_pipeline").is_dir():
        paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
        changes["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if is_at_url:
        from elmo.errors import ElmoError  # of the package

        url = os.environ.get("ELMO_STORAGE") or folder  # Ray shows `folder`, so it has no login
        try:
            return _run_at_url(url.rstrip("/"), command, project, os.environ | changes)
        except ElmoError as error:  # of the store, before the first stage
            print(f"error: {error}", flush=True)
            return 1
    if has_code and folder != "-":
        _make_workspace(project, os.environ | changes)
    return run(command, project, os.environ | changes)


def _delete_environment() -> None:
    """Delete environment.json on every node, because Ray keeps the job's package for later jobs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def delete() -> None:  # in the node's copy of the package
        Path(ENVIRONMENT_FILE).unlink(missing_ok=True)

    with contextlib.suppress(Exception):  # the head or a node may be gone
        ray.init(log_to_driver=False, logging_level="ERROR")
        task = ray.remote(num_cpus=0)(delete)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        policies = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
        references = [task.options(scheduling_strategy=policy).remote() for policy in policies]
        ray.wait(references, num_returns=len(references), timeout=_DELETE_SECONDS)
    (PACKAGE / ENVIRONMENT_FILE).unlink(missing_ok=True)


def _run_at_url(url: str, command: list[str], folder: Path, variables: dict[str, str]) -> int:
    """Run a command in a project whose data and models are at the URL.

    The project starts as it was sent, with the DVC caches of all jobs at the URL. Changed files are
    copied only to `jobs/<id>`, so two jobs never write the same file.
    """
    from elmo.io.location import Location  # of the package

    job = os.environ.get(JOB_VARIABLE, f"process-{os.getpid()}")
    jobs = Location(f"{url}/{JOBS}")
    target = jobs / job
    target.create("job.json", json.dumps({"node": os.uname().nodename}).encode())
    _init_dvc(folder, variables)
    _copy_dvc_cache(jobs, folder)
    inherited_files = {name for name in _file_states(folder) if name.startswith(DVC_CACHE)}
    if (PACKAGE / STATE_FOLDER).is_dir():
        shutil.copytree(PACKAGE / STATE_FOLDER, folder, dirs_exist_ok=True)
    _make_workspace(folder, variables)
    if (folder / DVC_LOCK).exists():  # missing files are made again, or taken from an earlier run
        subprocess.run(["dvc", "checkout", "-q"], cwd=folder, env=variables, capture_output=True)
    stop, problem = threading.Event(), [""]
    arguments = (folder, target, inherited_files, stop, problem)
    uploader = threading.Thread(target=_upload_changes, args=arguments)
    uploader.start()
    work_id = _choose_work_id(job, variables.get(PROJECT_VARIABLE, ""))
    try:
        code = run(command, folder, variables | {"ELMO_STORAGE": url, PROJECT_VARIABLE: work_id})
    finally:
        stop.set()
        uploader.join()
    if problem[0]:
        location = f"it is in {folder} on {os.uname().nodename}"
        print(f"error: cannot save the project to {target} ({problem[0]}); {location}", flush=True)
        return code or 1
    shutil.rmtree(folder, ignore_errors=True)
    return code


def _copy_dvc_cache(jobs: Any, folder: Path) -> None:
    """Copy the DVC caches of all jobs at the URL: files named by content, and records of runs."""
    from elmo.io.location import in_parallel

    pattern = re.compile(
        rf"[^/]+/({re.escape(DVC_CACHE)}(files/md5|runs)/[0-9a-f]{{2}}/[0-9a-f./dir]+)"
    )
    name_by_path = {
        match[1]: name
        for name in jobs.sizes()
        if (match := pattern.fullmatch(name)) and ".." not in name
    }
    for subfolder in {(folder / path).parent for path in name_by_path}:
        subfolder.mkdir(parents=True, exist_ok=True)
    in_parallel(lambda path: jobs.get(name_by_path[path], folder / path), name_by_path)


def _choose_work_id(job: str, project: str) -> str:
    """Return the id under which this job keeps its work in progress: that of its project or, while
    an earlier job of the project is running, a separate one."""
    from ray.job_submission import JobSubmissionClient

    try:
        jobs = JobSubmissionClient(os.environ["RAY_ADDRESS"]).list_jobs()
    except Exception as error:  # another job may be running
        print(f"  cannot list Ray's jobs ({error}); nothing is resumed", flush=True)
        return f"{project}-{job}"
    running_jobs = [
        (info.start_time or 0, str(info.submission_id))
        for info in jobs
        if (info.metadata or {}).get(PROJECT_VARIABLE) == project and not info.status.is_terminal()
    ]
    first_job = min(running_jobs, default=(0, job))[1]
    if first_job == job:
        return project
    print(
        f"  {first_job}, an earlier job of this project, is running; it keeps the unfinished work"
    )
    return f"{project}-{job}"


def _upload_changes(
    folder: Path, target: Any, inherited_files: set[str], stop: threading.Event, problem: list[str]
) -> None:
    """Copy changed project files, except `inherited_files`, to `target` until `stop` is set."""
    from elmo.io.location import in_parallel

    sent_states: dict[str, tuple[float, int]] = {}
    is_last = False
    while not is_last:
        is_last = stop.wait(_UPLOAD_SECONDS)
        try:
            items = _file_states(folder).items()
            states = {name: state for name, state in items if name not in inherited_files}
            changes = [name for name in states if states[name] != sent_states.get(name)]
            in_parallel(lambda name: target.put(name, folder / name), changes)
            target.delete_all(sent_states.keys() - states.keys())
            sent_states, problem[0] = states, ""
        except Exception as error:  # the next upload may succeed; the last problem is printed
            problem[0] = " ".join(str(error).split())
            print(f"  {target}: {problem[0]}", file=sys.stderr, flush=True)


def _file_states(folder: Path) -> dict[str, tuple[float, int]]:
    """Return time and size of each file of the project and of DVC's cache, except hidden files."""
    from elmo.io.location import files_below  # of the package

    status_by_name = files_below(folder)
    return {
        name: (status_by_name[name].st_mtime, status_by_name[name].st_size)
        for name in sorted(status_by_name)
        if not _is_hidden(tuple(name.split("/")))
    }


def _is_hidden(parts: tuple[str, ...]) -> bool:
    if "/".join(parts).startswith((f"{DVC_CACHE}files/", f"{DVC_CACHE}runs/")):
        return parts[-1].startswith(".")
    return any(name.startswith(".") and name != POINTER_FILE for name in parts)


def _make_workspace(folder: Path, variables: dict[str, str]) -> None:
    """Make `folder` a DVC workspace of the project's files as sent; keep outs and dvc.lock."""
    if not (folder / ".dvc").exists():
        _init_dvc(folder, variables)
    for name in PROJECT_FILES:
        if (PACKAGE / name).exists():
            copy = folder / f".{name}.{os.getpid()}"
            shutil.copyfile(PACKAGE / name, copy)
            copy.replace(folder / name)


def _init_dvc(folder: Path, variables: dict[str, str]) -> None:
    for command in (["init", "--no-scm"], ["config", *CACHE_LINK_TYPES]):
        subprocess.run(["dvc", *command, "-q"], cwd=folder, env=variables, check=True)


def run(command: list[str], folder: Path, variables: dict[str, str]) -> int:
    """Run a command in `folder`, wait for all its processes, and return its exit code.

    `variables` are its whole environment. Stopping a job signals all its processes. Wait for those
    that are saving a checkpoint: if their parents have died, they become children of this process.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    received_signals = []
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda signum, _: received_signals.append(signum))
    child = subprocess.Popen(command, cwd=folder, env=variables)
    exit_code = child.wait()
    while received_signals:
        try:
            os.wait()
        except ChildProcessError:
            break
    return exit_code if exit_code >= 0 else 128 - exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
