"""Submit a job to a Ray cluster through its Jobs API, and follow its log.

A job gets the code of `elmo` and `elmo_pipeline`, the project's files, and the environment
variables of an allow-list. Data and results stay in the cluster's storage.
"""

import asyncio
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import elmo
from elmo.errors import ElmoError, NotFound, first_line, reason_of

from .. import PACKAGE
from ..settings import cluster as cluster_settings
from ..terminal.urls import hide_credentials
from ..tracking.origin import COMMIT_VARIABLE, commit_tags
from . import job as on_cluster
from . import results, storage

SENT_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AZURE_STORAGE_*",
    "GOOGLE_CLOUD_PROJECT",
    "FSSPEC_*",
    "MLFLOW_TRACKING_*",
    "MLFLOW_EXPERIMENT_NAME",
    "MLFLOW_S3_ENDPOINT_URL",
    "ELMO_*",
)
LOCAL_VARIABLES = (  # variables of one machine or job
    "ELMO_CACHE",
    "ELMO_CACHE_GB",
    on_cluster.JOB_VARIABLE,
    on_cluster.PROJECT_VARIABLE,
)
STOP_SECONDS = 600  # time to save a checkpoint; Ray's default is 3
_CONNECT_SECONDS = 30.0  # for the cluster to accept a connection


def submit(
    stages: list[str],
    *,
    address: str | None,
    folder: str | None,
    command: str | None,
    variables: Iterable[str],
    params: Path,
    say: Callable[[str], None],
) -> tuple[Any, str]:
    """Submit a job to a Ray cluster; return the Jobs API client and the job's id.

    The job runs `elmo run STAGES`, or `command`, in `folder` on the cluster's shared storage or at
    a URL, with the code of this machine and `params` as params.yaml. `address` is as in `connect`,
    `variables` as in `choose_variables`; `say` is called with each line to print.
    """
    settings = cluster_settings.load(Path("cluster.yaml"))[0]
    folder = folder or (None if command else settings.storage or None)
    if command is None and folder is None:
        raise ElmoError(
            "--folder is missing; pass a folder on the cluster's shared storage, or a URL, for "
            "data and models"
        )
    if command is not None and stages:
        raise ElmoError("stages and --command cannot be combined; leave out one of them")
    is_url = folder is not None and "://" in folder
    if folder is not None and not (is_url or folder.startswith("/")):
        raise ElmoError(
            f"--folder {folder}: must be an absolute path on the cluster, such as /shared/elmo, or "
            "a URL, such as s3://bucket/elmo"
        )
    variables_to_send = cluster_settings.to_environment(settings) | choose_variables(variables)
    if commit := commit_tags():
        variables_to_send.setdefault(COMMIT_VARIABLE, json.dumps(commit))
    if is_url and not variables_to_send.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise ElmoError(
            f"--folder {folder}: without a shared folder there is no shared mlflow.db; set "
            "MLFLOW_TRACKING_URI to an MLflow server"
        )
    program = ["python", "-m", "elmo_pipeline", "run", *stages]
    if command is not None:
        try:
            program = shlex.split(command)
        except ValueError as error:
            raise ElmoError(f"--command {command}: {str(error).lower()}") from None
    job = f"elmo-{'-'.join(stages) or 'job'}-{secrets.token_hex(4)}".replace("@", "-")
    metadata = {on_cluster.JOB_VARIABLE: job}
    if folder is not None and is_url:
        metadata[on_cluster.PROJECT_VARIABLE] = storage.project_id()
        variables_to_send["ELMO_STORAGE"], folder = folder, hide_credentials(folder)
    with tempfile.TemporaryDirectory() as parent:
        package = Path(parent) / "package"
        # The job's id makes each package different. Otherwise Ray would reuse an equal one on its
        # nodes, where environment.json was deleted after the last job.
        pack(package, variables_to_send | metadata, params=params, state=is_url)
        client = connect(address)
        with catch_ray_errors(client.get_address()):
            client.submit_job(
                entrypoint=shlex.join(["exec", "python", "elmo_job.py", folder or "-", *program]),
                submission_id=job,
                runtime_env={
                    "working_dir": str(package),
                    "env_vars": {
                        "RAY_JOB_STOP_SIGNAL": "SIGINT",  # on which DVC waits for its stage
                        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
                    },
                    "worker_process_setup_hook": "elmo_job.set_environment",
                },
                metadata=metadata,
            )
    server = hide_credentials(client.get_address())
    say(f"submitted {job} to {server}; variables sent: {', '.join(variables_to_send) or '-'}")
    for line in list_commands(client, job):
        say(f"  {line}")
    return client, job


def choose_variables(entries: Iterable[str]) -> dict[str, str]:
    """Return the variables to send: those of the allow-list that are set, and those of `entries`.

    An entry is NAME, with the value in this process, or NAME=VALUE.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in LOCAL_VARIABLES and any(fnmatchcase(name, p) for p in SENT_VARIABLES)
    }
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator and name not in os.environ:
            raise ElmoError(f"--env {name}: not set here; set it or write --env {name}=VALUE")
        variables[name] = value if separator else os.environ[name]
    return dict(sorted(variables.items()))


def pack(package: Path, variables: dict[str, str], *, params: Path, state: bool = False) -> None:
    """Write the files to send with a job into the new folder `package`.

    They are the job's program `elmo_job.py`, `environment.json` with the `variables`, the packages
    `elmo` and `elmo_pipeline`, the project's dvc.yaml, and the file `params` as params.yaml; with
    `state`, also dvc.lock and the pointers and small results that it names. cluster.yaml is not
    sent, because it may hold logins.
    """
    package.mkdir()
    shutil.copyfile(on_cluster.__file__, package / "elmo_job.py")
    descriptor = os.open(package / on_cluster.ENVIRONMENT_FILE, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(variables, file)
    # The packages get the names that dvc.yaml uses.
    for name, source in {"elmo": Path(elmo.__file__).parent, "elmo_pipeline": PACKAGE}.items():
        ignore_names = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, package / name, ignore=ignore_names)
    for name in on_cluster.PROJECT_FILES:
        path = params if name == "params.yaml" else Path(name)
        if path.exists():
            shutil.copyfile(path, package / name)
        else:
            raise NotFound(f"{path}: no such file; submit from the project's folder")
    if state and Path(on_cluster.DVC_LOCK).exists():
        files = {on_cluster.DVC_LOCK: Path(on_cluster.DVC_LOCK)} | results.files_to_send()
        for name, path in files.items():
            (package / on_cluster.STATE_FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, package / on_cluster.STATE_FOLDER / name)


def connect(address: str | None) -> Any:
    """Return a client of the Jobs API at `address`.

    The default is RAY_API_SERVER_ADDRESS or else RAY_ADDRESS.
    """
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not address:
        raise ElmoError("--address is missing; pass the Jobs API, such as http://HEAD:8265")
    if not re.match("https?://", address):
        raise ElmoError(
            f"{hide_credentials(address)}: is not the address of a Jobs API; pass one such as "
            "--address http://HEAD:8265"
        )
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # otherwise Ray would prefer RAY_ADDRESS
    token = Path.home() / ".ray" / "auth_token"
    if token.exists() or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        from ray.job_submission import JobSubmissionClient
    except ModuleNotFoundError as error:
        install_command = "pip install 'elmo-pipeline[cluster]'"
        raise ElmoError(f"{error.name} is missing; run: {install_command}") from None
    for name in ("modules.dashboard_sdk", "modules.job.sdk"):
        logging.getLogger(f"ray.dashboard.{name}").setLevel(logging.WARNING)
    with catch_ray_errors(address):
        parts = urlsplit(address)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
        return JobSubmissionClient(address)


@contextmanager
def catch_ray_errors(address: str, *, advice: str = "; check --address") -> Iterator[None]:
    """Turn an error of a request to the Jobs API at `address` into an `ElmoError`.

    `advice` is appended to the message.
    """
    from ray.exceptions import AuthenticationError

    api = hide_credentials(address)
    try:
        yield
    except AuthenticationError:
        raise ElmoError(
            f"{api} refuses this token; put the cluster's token into RAY_AUTH_TOKEN, the file "
            "that RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token"
        ) from None
    except (KeyError, TypeError, json.JSONDecodeError):  # before OSError: one of requests is both
        raise ElmoError(f"{api}: the server there is not a Ray Jobs API{advice}") from None
    except OSError as error:  # including those of requests
        raise ElmoError(f"no Ray Jobs API answers at {api}: {reason_of(error)}{advice}") from None
    except (RuntimeError, ValueError) as error:  # as Ray raises them
        raise ElmoError(f"the Ray Jobs API at {api}: {first_line(error)}{advice}") from None


def list_commands(client: Any, job: str) -> list[str]:
    """Return Ray's commands, ready to paste, to show a job's log, to stop it, and to list jobs."""
    ray = "RAY_AUTH_MODE=token ray" if os.environ.get("RAY_AUTH_MODE") == "token" else "ray"
    address = f"--address {hide_credentials(client.get_address())}"
    return [
        f"{ray} job logs --follow {job} {address}",
        f"{ray} job stop {job} {address}  # training saves a checkpoint first",
        f"{ray} job list {address}",
    ]


def follow_log(client: Any, job: str) -> int:
    """Print a job's log until it ends; return its exit code.

    `client` is what `connect` returns, `job` the job's id. Raises `ElmoError` if the connection is
    lost; the job does not depend on it.
    """
    advice = f"; {job} may still be running: {list_commands(client, job)[0]}"
    with catch_ray_errors(client.get_address(), advice=advice):
        asyncio.run(_print_log(client, job))
        while not (details := client.get_job_info(job)).status.is_terminal():
            time.sleep(1)
    status = details.status.value
    if status == "SUCCEEDED":
        return 0
    if details.driver_exit_code is None and details.message and status == "FAILED":
        print(f"error: {first_line(RuntimeError(details.message))}", file=sys.stderr)
    code = details.driver_exit_code or 1
    print(f"{job}: {status}, exit code {code}", file=sys.stderr, flush=True)
    return int(code)


async def _print_log(client: Any, job: str) -> None:
    async for text in client.tail_job_logs(job):
        sys.stdout.write(text)
        sys.stdout.flush()
