"""The program that a submitted Ray job runs, sent as `elmo_job.py`: standard library only.

Beside it in the job's folder lie `environment.json` and, unless the cluster has a checkout of its
own, the code, dvc.yaml and params.yaml; for work at a URL, also the folder `state`: dvc.lock, and
what of DVC's cache it names.
"""

import contextlib
import ctypes
import filecmp
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
STATE = "state"  # the folder of what is sent of a project that lies at a URL
LOCK = "dvc.lock"
CACHE = ".dvc/cache/"  # of DVC: files under their digests, and what it remembers of runs
JOBS = "jobs"  # at a URL, the folder with a project for each job
ENVIRONMENT = "environment.json"
STORED = ".stored"  # a file of a project's folder whose data is at a URL, but for its manifests
JOB = "ELMO_JOB"  # the id of a submitted job
PROJECT = "ELMO_PROJECT"  # the id of the project, by which work in progress at a URL is found
# DVC's cache and the project share their files, since no stage changes a file in place.
LINKS = ("cache.type", "hardlink,reflink,symlink,copy")  # of the first, DVC makes no copy
_FORGET = 30.0  # seconds for all nodes to delete what was sent
_KEEP = 15.0  # seconds between two looks at what has changed in the project
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of Linux's prctl


def set_environment() -> None:
    """Set the environment variables sent with the job; Ray calls this in each of its processes.

    They come in a file and not in the job's runtime_env, which Ray shows and logs.
    """
    file = PACKAGE / ENVIRONMENT
    if file.exists():
        os.environ.update(json.loads(file.read_text(encoding="utf-8")))


def main(arguments: list[str]) -> int:
    """Run `arguments`, FOLDER and a command, and return the exit code of the command in FOLDER.

    FOLDER `-` is the folder that Ray unpacked for the job. If FOLDER is a URL, a temporary folder
    of this machine holds the project while the command runs, and `jobs/<id>` there a copy of it.
    """
    folder, *command = arguments
    set_environment()
    try:
        return _run(folder, command)
    finally:
        _forget()


def _run(folder: str, command: list[str]) -> int:
    at_url = "://" in folder
    home = PACKAGE if folder == "-" else Path(tempfile.mkdtemp() if at_url else folder)
    if not home.is_dir():
        print(f"error: {os.uname().nodename} has no folder {home}; mount it there", flush=True)
        return 1
    changes = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    changes["DVC_NO_ANALYTICS"] = "1"
    if code := (PACKAGE / "elmo_pipeline").is_dir():
        paths = [str(PACKAGE), os.environ.get("PYTHONPATH", "")]
        changes["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if at_url:
        from elmo.errors import ElmoError  # of the package

        url = os.environ.get("ELMO_STORAGE") or folder  # which Ray shows, so without its login
        try:
            return _run_at_url(url.rstrip("/"), command, home, os.environ | changes)
        except ElmoError as error:  # of the store, before the first stage
            print(f"error: {error}", flush=True)
            return 1
    if code and folder != "-":
        _prepare(home, os.environ | changes)
    return run(command, home, os.environ | changes)


def _forget() -> None:
    """Delete what was sent of the environment from every node: nothing of this job begins there any
    more, and Ray keeps a job's package for later ones."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def forget() -> None:  # in the copy of the package that its node has
        Path(ENVIRONMENT).unlink(missing_ok=True)

    with contextlib.suppress(Exception):  # the head is gone, or a node is
        ray.init(log_to_driver=False, logging_level="ERROR")
        remote = ray.remote(num_cpus=0)(forget)
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(node, soft=True) for node in nodes]
        references = [remote.options(scheduling_strategy=place).remote() for place in places]
        ray.wait(references, num_returns=len(references), timeout=_FORGET)
    (PACKAGE / ENVIRONMENT).unlink(missing_ok=True)


def _run_at_url(url: str, command: list[str], home: Path, variables: dict[str, str]) -> int:
    """Run a command in a project whose data and models lie at the URL.

    The project begins as it was sent, with what DVC remembers of all jobs there. Its files are
    copied to `jobs/<id>` as they change, and nowhere else: no two jobs write one file.
    """
    from elmo.io.location import Location  # of the package

    job = os.environ.get(JOB, f"process-{os.getpid()}")
    jobs = Location(f"{url}/{JOBS}")
    target = jobs / job
    target.create("job.json", json.dumps({"node": os.uname().nodename}).encode())
    _init(home, variables)
    _inherit(jobs, home)
    inherited = {name for name in _files(home) if name.startswith(CACHE)}
    if (PACKAGE / STATE).is_dir():
        shutil.copytree(PACKAGE / STATE, home, dirs_exist_ok=True)
    _prepare(home, variables)
    if (home / LOCK).exists():  # what is not there is made again, or taken from an earlier run
        subprocess.run(["dvc", "checkout", "-q"], cwd=home, env=variables, capture_output=True)
    stop, failed = threading.Event(), [""]
    keeper = threading.Thread(target=_upload, args=(home, target, inherited, stop, failed))
    keeper.start()
    project = _choose_work_id(job, variables.get(PROJECT, ""))
    try:
        code = run(command, home, variables | {"ELMO_STORAGE": url, PROJECT: project})
    finally:
        stop.set()
        keeper.join()
    if failed[0]:
        place = f"it is in {home} on {os.uname().nodename}"
        print(f"error: cannot save the project to {target} ({failed[0]}); {place}", flush=True)
        return code or 1
    shutil.rmtree(home, ignore_errors=True)
    return code


def _inherit(jobs: Any, home: Path) -> None:
    """Copy what DVC remembers of all jobs at the URL: files of its cache, whose names follow from
    their content, and runs of stages."""
    from elmo.io.location import in_parallel

    inner = re.compile(rf"[^/]+/({re.escape(CACHE)}(files/md5|runs)/[0-9a-f]{{2}}/[0-9a-f./dir]+)")
    names = {
        match[1]: name
        for name in jobs.tree()
        if (match := inner.fullmatch(name)) and ".." not in name
    }
    for folder in {(home / path).parent for path in names}:
        folder.mkdir(parents=True, exist_ok=True)
    in_parallel(lambda path: jobs.get(names[path], home / path), names)


def _choose_work_id(job: str, project: str) -> str:
    """Return the id under which this job keeps its work in progress: that of its project, or one of
    its own while an earlier job of the project is at work."""
    from ray.job_submission import JobSubmissionClient

    try:
        jobs = JobSubmissionClient(os.environ["RAY_ADDRESS"]).list_jobs()
    except Exception as error:  # so whether another is at work is not known
        print(f"  cannot list Ray's jobs ({error}); nothing is resumed", flush=True)
        return f"{project}-{job}"
    running = [
        (item.start_time or 0, str(item.submission_id))
        for item in jobs
        if (item.metadata or {}).get(PROJECT) == project and not item.status.is_terminal()
    ]
    earliest = min(running, default=(0, job))[1]
    if earliest == job:
        return project
    print(f"  {earliest}, an earlier job of this project, is running; it keeps the unfinished work")
    return f"{project}-{job}"


def _upload(
    home: Path, target: Any, inherited: set[str], stop: threading.Event, failed: list[str]
) -> None:
    """Copy what changes in the project, but for what was inherited, until all is done."""
    from elmo.io.location import in_parallel

    uploaded: dict[str, tuple[float, int]] = {}
    is_last = False
    while not is_last:
        is_last = stop.wait(_KEEP)
        try:
            current = {name: state for name, state in _files(home).items() if name not in inherited}
            changes = [name for name in current if current[name] != uploaded.get(name)]
            in_parallel(lambda name: target.put(name, home / name), changes)
            target.delete_all(uploaded.keys() - current.keys())
            uploaded, failed[0] = current, ""
        except Exception as error:  # the next look may do better; the last one is the user's
            failed[0] = " ".join(str(error).split())
            print(f"  {target}: {failed[0]}", file=sys.stderr, flush=True)


def _files(home: Path) -> dict[str, tuple[float, int]]:
    """Time and size of the project's files, those in DVC's cache too, but for what is being
    written."""
    from elmo.io.location import files_below  # of the package

    status_by_name = files_below(home)
    return {
        name: (status_by_name[name].st_mtime, status_by_name[name].st_size)
        for name in sorted(status_by_name)
        if not _is_hidden(tuple(name.split("/")))
    }


def _is_hidden(parts: tuple[str, ...]) -> bool:
    if "/".join(parts).startswith((f"{CACHE}files/", f"{CACHE}runs/")):
        return parts[-1].startswith(".")
    return any(part.startswith(".") and part != STORED for part in parts)


def _prepare(home: Path, variables: dict[str, str]) -> None:
    """Make `home` a DVC workspace of the project as it was sent; its outs and dvc.lock stay."""
    if not (home / ".dvc").exists():
        _init(home, variables)
    for name in PROJECT_FILES:
        fresh, current = PACKAGE / name, home / name
        if not fresh.exists() or (current.exists() and filecmp.cmp(fresh, current, shallow=False)):
            continue
        copy = home / f".{name}.{os.getpid()}"
        shutil.copyfile(fresh, copy)
        copy.replace(current)


def _init(home: Path, variables: dict[str, str]) -> None:
    for command in (["init", "--no-scm"], ["config", *LINKS]):
        subprocess.run(["dvc", *command, "-q"], cwd=home, env=variables, check=True)


def run(command: list[str], folder: Path, variables: dict[str, str]) -> int:
    """Run a command in `folder`, wait for all its processes, and return its exit code.

    `variables` are all of its environment. A stop signals every process of the job. Those that save
    a checkpoint must be waited for, and their parents may have died: they become children of this
    process.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: stopped.append(received))
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
