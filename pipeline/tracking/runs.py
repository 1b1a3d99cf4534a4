"""MLflow runs: opened, logged to from any process, and searched.

Which figures a run shows is chosen where they are logged: `pipeline.stages.training`, and the
modules of the other stages. What MLflow can't take now waits in a spool.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from elmo.errors import ElmoError
from elmo.io.location import Location, scratch
from elmo.io.records import digest

from ..settings.fingerprint import to_plain
from ..terminal.progress import say
from ..terminal.urls import without_credentials, without_credentials_in
from . import origin
from .client import (
    catch_mlflow_errors,
    check_mlflow,
    configured_uri,
    experiment_id,
    explain,
    mlflow_client,
    shorten_error,
    shown_uri,
)
from .spool import (
    FLUSH,
    Refused,
    Spool,
    SpooledRecord,
    count_records,
)

_PROCESS = "elmo.process"  # the tag of a run that says which process opened it
_RACES = 10  # times that another process may add a row first
_DUPLICATE = re.compile("UNIQUE constraint|UniqueViolation|duplicate key", re.IGNORECASE)
_KEPT = "mlflow.json"  # in the folder of work in progress: which run it is
_BATCH = 1000  # MLflow takes no more metrics at a time
_NEVER = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"}


class Run:
    """A handle to log to an MLflow run by its id, from any process.

    With a `spool` folder, what is logged is written to files there and sent by a thread, so that no
    call waits for MLflow, or fails because of it. `parent` is the id of the run of the `dvc repro`,
    empty where there is none.
    """

    def __init__(self, run_id: str, *, spool: Path | None = None, parent: str = "") -> None:
        self.run_id, self.spool, self.parent = run_id, spool, parent

    def log_metrics(self, figures: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log figures by name; those that are None or not finite are left out.

        `step` is the training step that they are of.
        """
        now = _now()
        rows = [
            [name, float(value), now, step]
            for name, value in figures.items()
            if value is not None and isfinite(value)
        ]
        if rows:
            self._log({"metrics": rows})

    def log_to_parent(self, figures: Mapping[str, float | None], params: Mapping[str, Any]) -> None:
        """Log the few figures and params that people compare to the run of the `dvc repro` too.

        Does nothing in a stage that was run alone.
        """
        if self.parent:
            whole = Run(self.parent, spool=self.spool)
            whole.log_metrics(figures)
            whole._log(
                {
                    "params": {
                        name: str(without_credentials_in(value)) for name, value in params.items()
                    }
                }
            )

    def log_artifact(self, path: Path) -> None:
        """Log a file or a folder as an artifact of the run."""
        self._log({"artifact": str(path.absolute())})

    def set_tag(self, name: str, value: str) -> None:
        """Set a tag of the run."""
        self._log({"tag": [name, without_credentials(value)]})

    def close(self, wait: float = 10.0) -> int:
        """Send unsent records, for `wait` seconds at most, and return how many are left.

        The run itself goes on.
        """
        spool = _SPOOLS.pop(self.spool, None) if self.spool else None
        return spool.close(wait) if spool else 0

    def _log(self, record: SpooledRecord) -> None:
        whole = {"run": self.run_id} | record
        if self.spool is None:
            with catch_mlflow_errors():
                _send([whole])
            return
        if self.spool not in _SPOOLS:
            _SPOOLS[self.spool] = Spool(self.spool, _send_or_explain, say=say)
        _SPOOLS[self.spool].add(whole)


_SPOOLS: dict[Path, Spool] = {}


@contextmanager
def run(
    stage: str,
    params: Any,
    *,
    inputs: Mapping[str, str],
    sources: Mapping[str, Path | Location] | None = None,
    folder: Location | None = None,
) -> Iterator[Run]:
    """Open an MLflow run of a stage for the block, and yield it.

    `params` are logged; `inputs` are digests of what the stage reads, by name, and `sources` their
    folders. With `folder`, the stage's work folder, an interrupted run is resumed, and what MLflow
    can't take now is kept beside it and sent later.
    """
    check_mlflow()
    run_id = None
    with catch_mlflow_errors():
        client = mlflow_client()
        if folder and folder.exists(_KEPT):
            run_id = folder.read_record(_KEPT, dict[str, str]).get("run_id")
        parent = _repro_run(client)
        _end_killed(client, stage)
        if run_id is None or not run_exists(run_id):
            run_id = _begin(client, stage, params, inputs, sources or {})
            if folder:
                folder.write_json(_KEPT, {"run_id": run_id})
        for one in filter(None, (parent, run_id)):
            client.update_run(one, status="RUNNING")
        client.set_tag(run_id, _PROCESS, origin.process_key())
        if parent:
            client.set_tag(run_id, "mlflow.parentRunId", parent)
    log = Run(run_id, spool=spool_folder(folder) if folder else None, parent=parent or "")
    try:
        yield log
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        with contextlib.suppress(Exception):  # the first error is the one to show
            _end(log, parent, status, wait=5)
        raise
    _end(log, parent, "FINISHED", wait=FLUSH)


def spool_folder(folder: Location) -> Path:
    """Return the folder for records that MLflow can't take now.

    It lies beside `folder`, the run's work folder; if that is at a URL, on this machine, among
    those of the same tracking server.
    """
    if folder.local is not None:
        return folder.local.parent / "unsent"
    return _spools_of_server() / digest(folder.url.rpartition("/")[0])[:8]


def spools_of_urls() -> list[Path]:
    """Return the folders on this machine with records for the present tracking server, of runs
    whose work folders are at URLs."""
    return [path for path in _spools_of_server().glob("*") if path.is_dir()]


def _spools_of_server() -> Path:
    """Another server would refuse these records for good: it does not know their runs."""
    return scratch() / "unsent" / digest(without_credentials(configured_uri()))[:8]


def end_killed_runs(stage: str) -> None:
    """Mark a stage's MLflow runs as killed if their process on this machine is gone.

    They would seem to be running for ever.
    """
    with catch_mlflow_errors():
        _end_killed(mlflow_client(), stage)


def _end_killed(client: Any, stage: str) -> None:
    running = client.search_runs(
        [experiment_id(client, stage)], f"tags.stage = '{stage}' and attributes.status = 'RUNNING'"
    )
    for one in running:
        if origin.is_gone(one.data.tags.get(_PROCESS, "")):
            client.set_terminated(one.info.run_id, "KILLED")


def _end(log: Run, parent: str | None, status: str, *, wait: float) -> None:
    for one in filter(None, (log.run_id, parent)):
        Run(one, spool=log.spool)._log({"status": status, "time": _now()})
    left = log.close(wait)
    if left:
        say(
            f"{left} records for {shown_uri()} stay in {log.spool}; they go out with the next run "
            "of this stage, or by: elmo work --send"
        )


def send_unsent(folder: Path) -> int:
    """Send the records that earlier runs left in a spool folder; return how many are left."""
    check_mlflow()
    return Spool(folder, _send_or_explain, say=say).close(FLUSH)


def count_unsent(folder: Path) -> int:
    """Return how many records in a spool folder have not been sent to MLflow."""
    return count_records(folder)


def _send_or_explain(records: Sequence[SpooledRecord]) -> None:
    """Send records; `Refused` where they can never be taken, `ElmoError` where not now."""
    for record in records:
        if not isinstance(record, dict) or not isinstance(record.get("run"), str):
            raise Refused("a record names no run")
    try:
        _send(records)
    except Exception as error:
        code = getattr(error, "error_code", "")
        if code in _NEVER or isinstance(error, FileNotFoundError):
            raise Refused(
                f"MLflow at {shown_uri()} refuses a record ({shorten_error(error)})"
            ) from error
        raise ElmoError(explain(error)) from error


def _send(records: Sequence[SpooledRecord]) -> None:
    """Send records in their order, the metrics of a run together."""
    from mlflow.entities import Metric, Param

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
        elif "params" in record:
            pairs = [Param(name, value) for name, value in record["params"].items()]
            client.log_batch(run_id, params=pairs)
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
    sources: Mapping[str, Path | Location],
) -> str:
    from mlflow.entities import Dataset as Entry
    from mlflow.entities import DatasetInput, InputTag, Param

    locations = {name: _address(sources[name]) for name in inputs if name in sources}
    tags = {"stage": stage, **{f"digest.{name}": value for name, value in inputs.items()}}
    tags |= {f"dvc.{n}": os.environ[n] for n in ("DVC_STAGE", "DVC_EXP_NAME") if n in os.environ}
    tags |= origin.origin_tags() | {_PROCESS: origin.process_key()}
    key = digest([stage, to_plain(params), dict(inputs)])[:6]
    name = " ".join(filter(None, [stage, os.environ.get("DVC_EXP_NAME"), key]))
    tags["mlflow.note.content"] = origin.run_description(stage, inputs, locations, tags)
    run_id = str(
        client.create_run(experiment_id(client, stage), run_name=name, tags=tags).info.run_id
    )
    flat = {
        name: str(without_credentials_in(value)) for name, value in _flat(to_plain(params)).items()
    }
    client.log_batch(run_id, params=[Param(name, value) for name, value in flat.items()])
    datasets = []
    for name, value in inputs.items():
        location = locations.get(name, name)
        kind = "local" if location.startswith("file:") else location.partition(":")[0]
        source = _json({"uri": location})
        entry = Entry(name, value[:36], kind, source, profile=_json({"digest": value}))
        datasets.append(DatasetInput(entry, [InputTag("mlflow.data.context", name)]))
    _log_inputs(client, run_id, datasets)
    with contextlib.suppress(OSError):  # a server's own artifact folder that is not ours to write
        client.log_dict(run_id, origin.package_versions(), "environment.json")
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


def _repro_run(client: Any) -> str | None:
    """Return the run of the `dvc repro` that runs this stage, or None."""
    key = origin.repro_key()
    if key is None:
        return None
    experiment = experiment_id(client)
    passes = client.search_runs([experiment], f"tags.`elmo.pass` = '{key}'", max_results=1)
    if passes:
        return str(passes[0].info.run_id)
    title = " ".join(filter(None, ["pass", os.environ.get("DVC_EXP_NAME"), _stamp()]))
    tags = {"stage": "pass", "elmo.pass": key} | origin.origin_tags()
    tags["mlflow.source.name"] = "dvc repro"
    tags["mlflow.note.content"] = "One pass of the pipeline; its stages are nested in it."
    return str(client.create_run(experiment, run_name=title, tags=tags).info.run_id)


@dataclass(frozen=True)
class RunFacts:
    """The facts that MLflow has of a finished training: time, commit, machine, metrics, params.

    `minutes` is how long it took; `changed` tells whether files of the project differed from the
    `commit`, which is empty without git.
    """

    run_id: str
    began: float  # seconds since 1970
    minutes: float
    commit: str
    changed: bool
    machine: str
    metrics: dict[str, float]
    params: dict[str, str]


def training_facts(stage: str, model_digest: str) -> RunFacts | None:
    """Return the facts of the newest finished run of a stage that made this model, or None."""
    with catch_mlflow_errors():
        client = mlflow_client()
        rows = client.search_runs(
            [experiment_id(client)],
            f"tags.stage = '{stage}' and tags.model_digest = '{model_digest}' "
            "and attributes.status = 'FINISHED'",
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
    if not rows:
        return None
    (row,) = rows
    tags = row.data.tags
    return RunFacts(
        row.info.run_id,
        row.info.start_time / 1000,
        (row.info.end_time - row.info.start_time) / 60_000,
        tags.get("mlflow.source.git.commit", ""),
        tags.get("git.dirty") == "true",
        tags.get("machine", ""),
        dict(row.data.metrics),
        dict(row.data.params),
    )


def run_exists(run_id: str) -> bool:
    """Tell whether MLflow has a run with this id."""
    from mlflow.exceptions import MlflowException

    try:
        return bool(mlflow_client().get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code in _NEVER:
            return False
        raise


def _address(source: Path | Location) -> str:
    """A path or URL as one that can be found: absolute, and without a login."""
    if "://" in str(source):
        return without_credentials(str(source))
    return Path(str(source)).absolute().as_uri()


def _json(value: Any) -> str:
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
