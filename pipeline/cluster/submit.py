"""Jobs on a Ray cluster, through its Jobs API: submit, list, follow and stop them.

A job is sent little: the code of `elmo` and `elmo_pipeline`, the project's files, and the
environment variables of an allow-list. Data and results stay in the cluster's storage.
"""

import asyncio
import fnmatch
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import elmo
from elmo.errors import ElmoError, NotFound, did_you_mean

from .. import PACKAGE
from ..settings import cluster as execution
from ..settings import strict_yaml
from ..terminal.urls import without_credentials
from . import job as on_cluster

ALLOWED = (
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
OWN = (
    "ELMO_CACHE",
    "ELMO_CACHE_GB",
    on_cluster.JOB,
    on_cluster.PROJECT,
)  # variables of one machine or job
STOP_SECONDS = 600  # for a checkpoint to be saved; Ray's own default is 3
_ANSWER = 30.0  # seconds in which the cluster must answer a request
_LOST_AFTER = 60.0  # seconds without a log line after which the cluster is asked for the job
_PATIENCE = 3600.0  # seconds that a connection may be lost


def submit(
    stages: list[str],
    *,
    address: str | None,
    folder: str | None,
    checkout: bool,
    command: str | None,
    variables: Iterable[str],
    params: Path,
    say: Callable[[str], None],
) -> tuple[Any, str]:
    """Submit a job to a Ray cluster; return the Jobs API client and the job's id.

    The job runs `elmo run STAGES`, or `command`, in `folder` on the cluster's shared storage or at
    a URL. With `checkout` that folder is the project, and its own code and params.yaml are used;
    without, those of this machine are sent, with `params` as params.yaml. `address` is as in
    `connect`, `variables` as in `environment`; `say` gets a line about what was sent.
    """
    settings = execution.load(Path("cluster.yaml"))[0]
    folder = folder or (None if command or checkout else settings.storage or None)
    if command is None and folder is None:
        raise ElmoError(
            "say with --folder which folder of the cluster's shared storage, or which URL, holds "
            "data and models"
        )
    if command is not None and stages:
        raise ElmoError("either stages or --command, not both")
    if not checkout:
        _check_stages(stages)
    at_url = folder is not None and "://" in folder
    if folder is not None and not (at_url or folder.startswith("/")):
        raise ElmoError(
            f"--folder {folder}: an absolute path on the cluster, such as /shared/elmo, or a URL, "
            "such as s3://bucket/elmo"
        )
    if at_url and checkout:
        raise ElmoError(f"--folder {folder}: a checkout is a folder on the cluster, not a URL")
    if checkout and folder is None:
        raise ElmoError("--checkout needs --folder, the checkout on the cluster's shared storage")
    sent = environment(variables)
    if settings.tracking_uri:
        sent.setdefault("MLFLOW_TRACKING_URI", settings.tracking_uri)
    if at_url and not sent.get("MLFLOW_TRACKING_URI", "").startswith("http"):
        raise ElmoError(
            f"--folder {folder}: machines that share no folder share no mlflow.db; name an MLflow "
            "server in MLFLOW_TRACKING_URI"
        )
    run = ["python", "-m", "elmo_pipeline", "run", *stages]
    if command is not None:
        try:
            run = shlex.split(command)
        except ValueError as error:
            raise ElmoError(f"--command {command}: {str(error).lower()}") from None
    job = f"elmo-{'-'.join(stages) or 'job'}-{secrets.token_hex(4)}".replace("@", "-")
    with tempfile.TemporaryDirectory() as parent:
        package = Path(parent) / "package"
        # With its job's id each package is another, to Ray too, which keeps equal ones as they are
        # on its nodes; there the variables of the last job are deleted.
        pack(package, sent | {on_cluster.JOB: job}, code=not checkout, params=params)
        client = connect(address)
        with _answers(client):
            _send(
                client,
                job,
                working_dir=package,
                what=command or " ".join(["elmo run", *stages]),
                entrypoint=shlex.join(["exec", "python", "elmo_job.py", folder or "-", *run]),
            )
    say(f"submitted {job} to {client.address}; sent of the environment: {', '.join(sent) or '-'}")
    return client, job


def _check_stages(stages: Iterable[str]) -> None:
    """Refuse what is nearly the name of a stage in dvc.yaml; DVC knows other targets."""
    path = Path("dvc.yaml")
    root = _branches(strict_yaml.parse_nodes(path)) if path.exists() else {}
    known = {*_branches(root.get("stages"))}
    for name in stages:
        stage = name.partition("@")[0]
        if re.fullmatch(r"[\w-]+", stage) and stage not in known:
            if near := did_you_mean(stage, known):
                raise ElmoError(f"dvc.yaml: has no stage {stage!r}{near}")


def _branches(node: Any) -> dict[str, Any]:
    """The branches of a mapping in YAML by name; none of another node."""
    return {k.value: v for k, v in node.value} if getattr(node, "id", "") == "mapping" else {}


def environment(asked: Iterable[str]) -> dict[str, str]:
    """Return the variables to send: those of the allow-list that are set, and those `asked` for.

    `asked` holds NAME, whose value is this process's, or NAME=VALUE.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in OWN and any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED)
    }
    for entry in asked:
        name, given, value = entry.partition("=")
        if not given and name not in os.environ:
            raise ElmoError(f"--env {name}: not set here; set it or write --env {name}=VALUE")
        variables[name] = value if given else os.environ[name]
    return dict(sorted(variables.items()))


def pack(package: Path, sent: dict[str, str], *, code: bool, params: Path) -> None:
    """Write the files to send with a job into the new folder `package`.

    They are the job's program, `elmo_job.py`; `environment.json` with `sent`, the values of
    environment variables by name; and with `code` the packages `elmo` and `elmo_pipeline`, the
    project's dvc.yaml and cluster.yaml, and the file `params` as params.yaml.
    """
    package.mkdir()
    shutil.copyfile(on_cluster.__file__, package / "elmo_job.py")
    descriptor = os.open(package / on_cluster.ENVIRONMENT, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(sent, file)
    if not code:
        return
    # Under the names that dvc.yaml uses, whatever the packages are called where they are installed.
    for name, source in {"elmo": Path(elmo.__file__).parent, "elmo_pipeline": PACKAGE}.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, package / name, ignore=ignored)
    for name in on_cluster.PROJECT_FILES:
        path = params if name == "params.yaml" else Path(name)
        if path.exists():
            shutil.copyfile(path, package / name)
        elif name != "cluster.yaml":
            raise NotFound(f"{path}: no such file; submit from the project's folder")


def _send(client: Any, job: str, *, working_dir: Path, what: str, entrypoint: str) -> None:
    """Submit; a connection lost while it is answered does not submit twice."""
    variables = {
        "RAY_JOB_STOP_SIGNAL": "SIGINT",  # DVC waits for its stage on this one
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
    }
    runtime = {
        "working_dir": str(working_dir),
        "env_vars": variables,
        "worker_process_setup_hook": "elmo_job.set_environment",
    }
    try:
        client.submit_job(
            entrypoint=entrypoint, submission_id=job, runtime_env=runtime, metadata={"what": what}
        )
    except OSError:
        _patiently(client, lambda: client.get_job_info(job))


def connect(address: str | None) -> Any:
    """Return a client of the Jobs API at `address`.

    Without an address, RAY_API_SERVER_ADDRESS or else RAY_ADDRESS names it.
    """
    address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not address:
        raise ElmoError("say with --address where the cluster's Jobs API is, as http://HEAD:8265")
    if not re.match("https?://", address):
        raise ElmoError(
            f"{without_credentials(address)}: is not the address of a Jobs API; pass it as "
            "--address as http://HEAD:8265"
        )
    os.environ["RAY_API_SERVER_ADDRESS"] = address  # or RAY_ADDRESS would be preferred to it
    token = Path.home() / ".ray" / "auth_token"
    if token.exists() or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ModuleNotFoundError as error:
        install = "pip install 'elmo-pipeline[cluster]'"
        raise ElmoError(f"{error.name} is missing; run: {install}") from None
    for module in ("modules.dashboard_sdk", "modules.job.sdk"):
        logging.getLogger(f"ray.dashboard.{module}").setLevel(logging.WARNING)
    logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.WARNING)

    class Client(JobSubmissionClient):
        """With a limit on how long an answer takes: a cluster out of reach must not hang."""

        address = property(lambda self: without_credentials(self._address))

        def _do_request(self, *arguments: Any, **options: Any) -> Any:
            try:
                return super()._do_request(*arguments, **({"timeout": _ANSWER} | options))
            except AuthenticationError:
                raise ElmoError(
                    f"{address} refuses this token; RAY_AUTH_TOKEN, or the file that "
                    "RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token, must hold the cluster's"
                ) from None

    with _answers(address):
        return Client(address)


@contextmanager
def _answers(client: Any) -> Iterator[None]:
    """Say in one line what went wrong with a request."""
    address = getattr(client, "address", client)
    try:
        yield
    except ElmoError:
        raise
    except OSError as error:  # those of requests are
        raise ElmoError(f"no Ray Jobs API answers at {address}: {_line(error)}") from None
    except (RuntimeError, ValueError) as error:  # as Ray raises them, a refused token too
        if unknown := re.search(r"Job (\S+) does not exist", str(error)):
            raise NotFound(f"{address}: has no job {unknown[1]}; elmo jobs lists them") from None
        raise ElmoError(f"the Ray Jobs API at {address}: {_line(error)}") from None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 400 else text[:400] + "…"


def jobs(address: str | None) -> list[dict[str, str]]:
    """Return the submitted jobs, newest last: of each its id, status, start, duration and command.

    They are texts under "job", "status", "start", "duration" and "what". `address` is as in
    `connect`.
    """
    client = connect(address)
    with _answers(client):
        listed = [info for info in client.list_jobs() if info.submission_id]
    found = []
    for info in sorted(listed, key=lambda info: info.start_time or 0):
        began = (info.start_time or 0) / 1000
        seconds = ((info.end_time or time.time() * 1000) / 1000 - began) if began else 0
        day = time.strftime("%Y-%m-%d %H:%M", time.localtime(began)) if began else "-"
        what = (info.metadata or {}).get("what", info.entrypoint)
        row = (info.submission_id, info.status.value, day, f"{seconds:.0f} s", what)
        names = ("job", "status", "start", "duration", "what")
        found.append(dict(zip(names, map(str, row), strict=True)))
    return found


def lines(listed: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the table of `jobs` as lines with aligned columns."""
    rows = [tuple(one.values()) for one in listed]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)] + [0]
    return ["  ".join(map(str.ljust, row, widths)) for row in rows]


def stop(address: str | None, job: str, *, say: Callable[[str], None]) -> int:
    """Ask a job to save a checkpoint and stop, wait until it has, and return 0, the exit code.

    `address` is as in `connect`, `job` the job's id; `say` gets lines about it.
    """
    client = connect(address)
    with _answers(client):
        if not client.stop_job(job):
            say(f"{job} had ended: {client.get_job_info(job).status.value}")
            return 0
    say(f"stopping {job}: what trains saves a checkpoint first, within {STOP_SECONDS} s")
    while not (info := _patiently(client, lambda: client.get_job_info(job))).status.is_terminal():
        time.sleep(1)
    say(f"{job}: {info.status.value}; submit the same again to go on")
    return 0


def follow(client: Any, job: str) -> int:
    """Print a job's log until it ends, reconnecting where needed; return its exit code.

    `client` is what `connect` returns, `job` the job's id.
    """
    log = _Log()
    with _answers(client):
        while True:
            try:
                asyncio.run(_tail(client, job, log))
            except Exception as error:  # the next question tells whether this was the end
                if isinstance(error, ElmoError):
                    raise
            info = _patiently(client, lambda: client.get_job_info(job))
            if info.status.is_terminal():
                break
            time.sleep(1)
        log.start()
        log.add(_patiently(client, lambda: client.get_job_logs(job)))
    status = info.status.value
    if status == "SUCCEEDED":
        return 0
    if info.driver_exit_code is None and info.message and status == "FAILED":
        print(f"error: {_line(RuntimeError(info.message))}", file=sys.stderr)
    code = info.driver_exit_code or 1
    print(f"{job}: {status}, exit code {code}; see also: elmo jobs", file=sys.stderr, flush=True)
    return int(code)


class _Log:
    """A log that is read again from its start after a lost connection, printed once."""

    def __init__(self) -> None:
        self.printed = self.read = 0

    def start(self) -> None:
        """Reading begins anew."""
        self.read = 0

    def add(self, text: str) -> None:
        """Print what of this text was not printed yet."""
        new = text[max(0, self.printed - self.read) :]
        self.read += len(text)
        self.printed = max(self.printed, self.read)
        sys.stdout.write(new)
        sys.stdout.flush()


async def _tail(client: Any, job: str, log: _Log) -> None:
    """Print the log as it grows. Where it is silent for long, check that the cluster answers."""
    log.start()
    stream = client.tail_job_logs(job).__aiter__()
    while True:
        piece = asyncio.ensure_future(stream.__anext__())
        while not (await asyncio.wait({piece}, timeout=_LOST_AFTER))[0]:
            try:
                await asyncio.to_thread(client.get_job_info, job)
            except BaseException:
                piece.cancel()
                raise
        try:
            log.add(piece.result())
        except StopAsyncIteration:
            return


def _patiently(client: Any, ask: Callable[[], Any]) -> Any:
    """Return what the cluster answers, though the connection may be lost for an hour meanwhile."""
    began, pause, announced = time.monotonic(), 1.0, 0.0
    while True:
        try:
            return ask()
        except (OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "status code 5" not in str(error):
                raise
            lost = time.monotonic() - began
            if lost > _PATIENCE:
                raise ElmoError(
                    f"{client.address} did not answer for {lost / 60:.0f} min: {_line(error)}; "
                    "the job may go on: elmo attach shows it when the cluster answers again"
                ) from None
            if lost >= announced:
                print(
                    f"  {client.address} does not answer; asking again ({lost:.0f} s). If only the "
                    "connection is lost the job goes on; if the head is gone, submit it again",
                    file=sys.stderr,
                    flush=True,
                )
                announced = lost + 30
        time.sleep(pause)
        pause = min(2 * pause, 15)
