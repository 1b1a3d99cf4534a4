"""The file that talks to MLflow's tracking: runs with their params, curves and datasets.

The tracking URI is MLflow's own (`MLFLOW_TRACKING_URI`); unset, runs go to `mlflow.db` in the
project's folder. The experiment is `MLFLOW_EXPERIMENT_NAME`, or `elmo`. The stages of one pass of
the pipeline are nested in one parent run. A stage asks whether MLflow answers before it begins;
from then on its figures wait in a spool where MLflow is slow or away.
"""

import contextlib
import logging
import os
import re
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from elmo.errors import ElmoError
from elmo.files import digest, read_record, write_json

from .spool import Record, Refused, Spool, waiting
from .urls import clean, without_credentials

Result = TypeVar("Result")
EXPERIMENT = "elmo"
ANSWER = 20.0  # seconds a server has to answer when a stage begins
FLUSH = 60.0  # seconds a finished stage waits for its last figures to go out
LOCKED = 5.0  # seconds another process may hold the database
_RACES = 10  # times that another process may add a row first
_DUPLICATE = re.compile("UNIQUE constraint|UniqueViolation|duplicate key", re.IGNORECASE)
_BATCH = 1000  # MLflow takes no more metrics at a time
_NEVER = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"}
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
}


class Run:
    """An MLflow run that may be logged to from any process that knows its id.

    With a `spool` folder no call waits for MLflow or fails with it.
    """

    def __init__(self, run_id: str, *, spool: Path | None = None) -> None:
        self.run_id, self.spool = run_id, spool

    def metrics(self, figures: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log figures; those that are None or not finite are left out."""
        now = _now()
        rows = [
            [name, float(value), now, step]
            for name, value in figures.items()
            if value is not None and isfinite(value)
        ]
        if rows:
            self._log({"metrics": rows})

    def artifact(self, path: Path) -> None:
        """Log a file or a folder."""
        self._log({"artifact": str(path.absolute())})

    def tag(self, name: str, value: str) -> None:
        """Set a tag."""
        self._log({"tag": [name, without_credentials(value)]})

    def close(self, wait: float = 10.0) -> int:
        """Send what this process still keeps, for `wait` seconds at most; return what is left."""
        spool = _SPOOLS.pop(self.spool, None) if self.spool else None
        return spool.close(wait) if spool else 0

    def _log(self, record: Record) -> None:
        whole = {"run": self.run_id} | record
        if self.spool is None:
            with answers():
                _send([whole])
            return
        if self.spool not in _SPOOLS:
            _SPOOLS[self.spool] = Spool(self.spool, _send_or_explain, say=say)
        _SPOOLS[self.spool].add(whole)


_SPOOLS: dict[Path, Spool] = {}
_CLIENTS: dict[str, Any] = {}


@contextmanager
def run(
    stage: str,
    params: Any,
    *,
    inputs: Mapping[str, str],
    sources: Mapping[str, Path | str] | None = None,
    folder: Path | None = None,
) -> Iterator[Run]:
    """Open a run of a stage.

    `inputs` are digests of what it reads, by name, and `sources` where that is. With `folder`,
    where the work in progress is kept, that run is resumed, and what MLflow can't take now
    waits beside it.
    """
    check()
    kept = folder / "mlflow.json" if folder else None
    with answers():
        client = mlflow_client()
        run_id = read_record(kept, dict[str, str]).get("run_id") if kept and kept.exists() else None
        parent = _parent(client)
        if run_id is None or not exists(run_id):
            run_id = _begin(client, stage, params, inputs, sources or {})
            if kept:
                write_json(kept, {"run_id": run_id})
        for one in filter(None, (parent, run_id)):
            client.update_run(one, status="RUNNING")
        if parent:
            client.set_tag(run_id, "mlflow.parentRunId", parent)
    log = Run(run_id, spool=folder.parent / "unsent" if folder else None)
    try:
        yield log
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        with contextlib.suppress(Exception):  # the first error is the one to show
            _end(log, parent, status, wait=5)
        raise
    _end(log, parent, "FINISHED", wait=FLUSH)


def _end(log: Run, parent: str | None, status: str, *, wait: float) -> None:
    for one in filter(None, (log.run_id, parent)):
        Run(one, spool=log.spool)._log({"status": status, "time": _now()})
    left = log.close(wait)
    if left:
        say(
            f"{left} records for {shown_uri()} stay in {log.spool}; they go out with the next run "
            "of this stage, or by: elmo runs --send"
        )


def send_unsent(folder: Path) -> int:
    """Send what earlier runs left in a spool folder; return how many records stay behind."""
    check()
    return Spool(folder, _send_or_explain, say=say).close(FLUSH)


def unsent(folder: Path) -> int:
    """How many records wait in a spool folder."""
    return waiting(folder)


def _send_or_explain(records: Sequence[Record]) -> None:
    """Send records; `Refused` where they can never be taken, `ElmoError` where not now."""
    try:
        _send(records)
    except Exception as error:
        code = getattr(error, "error_code", "")
        if code in _NEVER or isinstance(error, FileNotFoundError):
            raise Refused(f"MLflow at {shown_uri()} refuses a record ({_line(error)})") from error
        raise ElmoError(explain(error)) from error


def _send(records: Sequence[Record]) -> None:
    """Send records in their order, the metrics of a run together."""
    from mlflow.entities import Metric

    client = mlflow_client()
    metrics: list[Any] = []

    def flush(run_id: str) -> None:
        for k in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[k : k + _BATCH])
        metrics.clear()

    before = ""
    for record in records:
        run_id = record["run"]
        if before not in ("", run_id) or "metrics" not in record:
            flush(before or run_id)
        before = run_id
        if "metrics" in record:
            metrics += [Metric(*row) for row in record["metrics"]]
        elif "tag" in record:
            client.set_tag(run_id, *record["tag"])
        elif "status" in record:
            client.set_terminated(run_id, record["status"], record["time"])
        elif "artifact" in record:
            path = Path(record["artifact"])
            path.stat()
            (client.log_artifacts if path.is_dir() else client.log_artifact)(run_id, str(path))
    flush(before)


def _begin(
    client: Any,
    stage: str,
    params: Any,
    inputs: Mapping[str, str],
    sources: Mapping[str, Path | str],
) -> str:
    from mlflow.entities import Dataset as Entry
    from mlflow.entities import DatasetInput, InputTag, Param

    locations = {name: _address(sources[name]) for name in inputs if name in sources}
    tags = {"stage": stage, **{f"digest.{name}": value for name, value in inputs.items()}}
    tags |= {f"dvc.{n}": os.environ[n] for n in ("DVC_STAGE", "DVC_EXP_NAME") if n in os.environ}
    tags |= _origin()
    key = fingerprint(stage, params, inputs)[:6]
    name = " ".join(filter(None, [stage, os.environ.get("DVC_EXP_NAME"), key]))
    tags["mlflow.note.content"] = _description(stage, inputs, locations, tags)
    run_id = str(client.create_run(_experiment(client), run_name=name, tags=tags).info.run_id)
    flat = {name: str(clean(value)) for name, value in _flat(asdict(params)).items()}
    client.log_batch(run_id, params=[Param(name, value) for name, value in flat.items()])
    datasets = []
    for name, value in inputs.items():
        location = locations.get(name, name)
        kind = "local" if location.startswith("file:") else location.partition(":")[0]
        source = json_text({"uri": location})
        entry = Entry(name, value[:36], kind, source, profile=json_text({"digest": value}))
        datasets.append(DatasetInput(entry, [InputTag("mlflow.data.context", name)]))
    _log_inputs(client, run_id, datasets)
    with contextlib.suppress(OSError):  # a server's own artifact folder that is not ours to write
        client.log_dict(run_id, _environment(), "environment.json")
    return run_id


def _log_inputs(client: Any, run_id: str, datasets: list[Any]) -> None:
    """Tie datasets to a run.

    MLflow adds the datasets that it does not know. Where two runs add the same one at once, its
    database refuses the later, which finds the dataset when it asks again.
    """
    from mlflow.exceptions import MlflowException

    for tries_left in reversed(range(_RACES)):
        try:
            client.log_inputs(run_id, datasets)
            return
        except MlflowException as error:
            if not tries_left or not _DUPLICATE.search(str(error)):
                raise
        time.sleep(0.1)


def _description(
    stage: str, inputs: Mapping[str, str], locations: Mapping[str, str], tags: Mapping[str, str]
) -> str:
    """What a person wants to know of a run before opening it."""
    lines = [f"Stage `{stage}` read"]
    lines += [
        f"- {name}: `{locations.get(name, '')}` (digest {value[:12]})"
        for name, value in inputs.items()
    ]
    commit = tags.get("mlflow.source.git.commit")
    if commit:
        changed = tags.get("git.changed", "")
        lines.append(f"\nCommit {commit[:12]}" + (f", changed: {changed}" if changed else ""))
    return "\n".join(lines)


def _origin() -> dict[str, str]:
    """The user, the command and the commit."""
    import getpass
    import subprocess

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(_root()), *arguments]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            return done.stdout.rstrip() if done.returncode == 0 else None
        return None

    tags = {"mlflow.source.type": "LOCAL"}
    command = ["elmo" if a.endswith("__main__.py") else a for a in sys.argv[:1]] + sys.argv[1:]
    tags["mlflow.source.name"] = clean(" ".join(command))[:500]
    with contextlib.suppress(Exception):  # a container's user has no name
        tags["mlflow.user"] = getpass.getuser()
    commit = git("rev-parse", "HEAD")
    if commit:
        tags["mlflow.source.git.commit"] = commit
        branch = git("rev-parse", "--abbrev-ref", "HEAD")
        tags |= {"mlflow.source.git.branch": branch} if branch else {}
        # What stages themselves write and git tracks is no change of the project.
        status = git(
            "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!metrics"
        )
        changed = [line[3:] for line in (status or "").splitlines()]
        tags["git.dirty"] = str(bool(changed)).lower()
        tags |= {"git.changed": ", ".join(changed)[:500]} if changed else {}
    return tags


def _parent(client: Any) -> str | None:
    """The run of this pass of the pipeline: of the `dvc repro` that runs this stage, if one does.

    `ELMO_PASS` names a pass where its stages have no common parent process.
    """
    key = os.environ.get("ELMO_PASS") or _dvc_process()
    if key is None:
        return None
    experiment = _experiment(client)
    passes = client.search_runs([experiment], f"tags.`elmo.pass` = '{key}'", max_results=1)
    if passes:
        return str(passes[0].info.run_id)
    title = " ".join(filter(None, ["pass", os.environ.get("DVC_EXP_NAME"), _stamp()]))
    tags = {"stage": "pass", "elmo.pass": key} | _origin()
    tags["mlflow.source.name"] = "dvc repro"
    tags["mlflow.note.content"] = "One pass of the pipeline; its stages are nested in it."
    return str(client.create_run(experiment, run_name=title, tags=tags).info.run_id)


def _dvc_process() -> str | None:
    """The process that set DVC's variables: the nearest ancestor that has them not."""
    if "DVC_STAGE" not in os.environ:
        return None
    import platform

    import psutil

    with contextlib.suppress(psutil.Error):
        for ancestor in psutil.Process().parents():
            if "DVC_STAGE" not in ancestor.environ():
                return f"{platform.node()}-{ancestor.pid}-{ancestor.create_time():.0f}"
    return None


def runs(stage: str) -> list[dict[str, Any]]:
    """The runs of a stage with their tags, newest first."""
    check()
    with answers():
        client = mlflow_client()
        result = client.search_runs([_experiment(client)], f"tags.stage = '{stage}'")
    return [{"run_id": run.info.run_id, **run.data.tags} for run in result]


def latest_runs(count: int) -> list[dict[str, Any]]:
    """The newest runs: id, name, stage, status, when each began (ms), and its figures."""
    with answers():
        client = mlflow_client()
        result = client.search_runs([_experiment(client)], max_results=count)
    return [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name,
            "stage": run.data.tags.get("stage", ""),
            "status": run.info.status,
            "began": run.info.start_time,
            "metrics": run.data.metrics,
        }
        for run in result
    ]


def check() -> None:
    """`ElmoError`, soon and in one line, where MLflow can't be used."""
    with answers():
        client = mlflow_client()
        file = database_of(_uri())
        if file is None:
            _within(ANSWER, lambda: client.search_experiments(max_results=1))
            return
        _check_database(file)
        _make_database(file)
        client.search_experiments(max_results=1)


@contextmanager
def answers() -> Iterator[None]:
    """Turn any error of MLflow, its server or its database into one `ElmoError`."""
    try:
        yield
    except (ElmoError, KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:
        raise ElmoError(explain(error)) from error


def explain(error: BaseException) -> str:
    """What MLflow's error means, in one line."""
    text, line = str(error), _line(error)
    where = f"MLflow at {shown_uri()}"
    status = re.search(r"error code (\d{3})", text)
    if (
        "UNAUTHENTICATED" in text
        or "PERMISSION_DENIED" in text
        or (status and status[1] in ("401", "403"))
    ):
        return (
            f"{where} refuses the login; set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        )
    reasons = {
        "Connection refused": "connection refused",
        "NameResolutionError": "no such host",
        "Name or service not known": "no such host",
        "timed out": "no answer in time",
        "Connection aborted": "it closed the connection",
        "Connection reset": "it closed the connection",
        "No route to host": "no route to it",
    }
    for sign, reason in reasons.items():
        if sign in text:
            return f"{where} can't be reached ({reason}); start it, or set MLFLOW_TRACKING_URI"
    if status:
        return (
            f"{where} answers with error {status[1]}; see that it is an MLflow server and is well, "
            "or set MLFLOW_TRACKING_URI"
        )
    return f"{where}: {line}"


def _line(error: BaseException) -> str:
    text = " ".join(without_credentials(str(error)).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:299] + "…"


def _within(seconds: float, ask: Callable[[], Result]) -> Result:
    """What `ask` returns, or `ElmoError` where it takes too long: a socket may never answer."""
    answer: list[Result] = []
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            answer.append(ask())
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if wrong:
        raise wrong[0]
    if not answer:
        raise ElmoError(
            f"MLflow at {shown_uri()} gives no answer in {seconds:.0f} s; see that it is well, or "
            "set MLFLOW_TRACKING_URI"
        )
    return answer[0]


def _environment() -> dict[str, Any]:
    import platform
    from importlib.metadata import version

    names = ("torch", "numpy", "pyarrow", "ray", "dvc", "mlflow")
    packages = {name: version(name) for name in names}
    return {"python": platform.python_version(), "system": platform.system(), "packages": packages}


def mlflow_client() -> Any:
    """MLflow's client, made once for each address, after a check of a database's file."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it names each retry
    with silent("alembic"), silent("mlflow"):
        import mlflow

        if "MLFLOW_TRACKING_URI" not in os.environ:
            mlflow.set_tracking_uri(f"sqlite:///{_root() / 'mlflow.db'}")
        uri = _uri()
        if uri not in _CLIENTS:
            file = database_of(uri)
            if file is not None:
                _check_database(file)
                _make_database(file)
            _CLIENTS[uri] = mlflow.MlflowClient()
        return _CLIENTS[uri]


def _root() -> Path:
    return Path(os.environ.get("DVC_ROOT", ".")).absolute()


def _uri() -> str:
    import mlflow

    return str(mlflow.get_tracking_uri())


def shown_uri() -> str:
    """Where runs go, as it may be shown."""
    return without_credentials(_uri())


def database_of(uri: str) -> Path | None:
    """The file of an SQLite URI."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def database() -> Path | None:
    """The file of the database in use, where it is a file."""
    mlflow_client()
    return database_of(_uri())


def _check_database(path: Path) -> None:
    """`ElmoError` where MLflow would try for a minute, and then show a traceback."""
    other = "or set MLFLOW_TRACKING_URI"
    if path.is_dir():
        raise ElmoError(f"{path}: is a folder, not MLflow's database; move it away, {other}")
    folder = path.parent
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise ElmoError(f"{folder}: can't be written, and MLflow's database is there; {other}")
    if not path.exists():
        return
    try:
        address = f"file:{quote(str(path))}?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=LOCKED, isolation_level=None)
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("SELECT count(*) FROM sqlite_master")
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        advice = {
            "file is not a database": "move it away",
            "database is locked": "end the process that holds it",
            "attempt to write a readonly database": "make it writable",
        }.get(str(error), "restore it")
        raise ElmoError(
            f"{path}: MLflow's database can't be used ({error}); {advice}, {other}"
        ) from None


def _make_database(database: Path) -> None:
    """Make an SQLite database whole or not at all.

    MLflow makes its tables one after another, and is stuck for good with a database whose making
    was killed half-way.
    """
    if database.exists():
        return
    import mlflow

    database.parent.mkdir(parents=True, exist_ok=True)
    beside = database.with_name(f".{database.name}.{uuid.uuid4().hex[:8]}")
    try:
        with silent("mlflow"):
            mlflow.MlflowClient(f"sqlite:///{beside}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(beside, database)
    finally:
        beside.unlink(missing_ok=True)


def tracking_uri() -> str:
    """Where runs go, with its login: for MLflow alone, never to be shown or kept."""
    with answers():
        mlflow_client()
        return _uri()


def _experiment(client: Any) -> str:
    if os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return os.environ["MLFLOW_EXPERIMENT_ID"]
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        if experiment.lifecycle_stage == "deleted":
            raise ElmoError(
                f"MLflow's experiment {name} is deleted; restore it (mlflow experiments restore "
                f"-x {experiment.experiment_id}), or name another in MLFLOW_EXPERIMENT_NAME"
            )
        return str(experiment.experiment_id)
    file = database_of(_uri())
    root = file.absolute().parent / "mlruns" if file else None
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(name, root.as_uri() if root else None))
    except MlflowException:  # another process was first
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


def exists(run_id: str) -> bool:
    """Whether this MLflow has a run."""
    from mlflow.exceptions import MlflowException

    try:
        return bool(mlflow_client().get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code in _NEVER:
            return False
        raise


def _address(source: Path | str) -> str:
    """A path or URL as one that can be found: absolute, and without a login."""
    if "://" in str(source):
        return without_credentials(str(source))
    return Path(source).absolute().as_uri()


def json_text(value: Any) -> str:
    """JSON on one line."""
    import json

    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat


def _now() -> int:
    return int(time.time() * 1000)


def _stamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def say(line: str) -> None:
    """Print a progress line to standard error."""
    print(f"  {line}", file=sys.stderr, flush=True)


@contextmanager
def silent(name: str) -> Iterator[None]:
    """A library's progress lines off; its warnings and errors stay."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def fingerprint(stage: str, params: Any, inputs: Mapping[str, str]) -> str:
    """What work in progress is keyed by: params, inputs, and the results version of the code."""
    from .results import version

    key = {
        "stage": stage,
        "results": version(stage),
        "params": asdict(params),
        "inputs": dict(inputs),
    }
    return digest(key)[:16]
