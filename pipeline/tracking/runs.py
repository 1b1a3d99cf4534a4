"""Open MLflow runs and log to them.

The modules of the stages choose the figures to log. Logging is best effort: if MLflow can't be
reached, figures are kept in memory and sent when it answers again. Figures that MLflow already has
are not sent twice.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

from elmo.io.location import Location
from elmo.io.records import digest

from ..settings.fingerprint import to_plain_dict
from ..terminal.progress import say
from ..terminal.urls import hide_credentials, hide_credentials_in
from . import origin
from .client import (
    catch_mlflow_errors,
    check_mlflow,
    experiment_id,
    explain_mlflow_error,
    folder_before_move,
    mlflow_client,
    public_uri,
)

FLUSH_SECONDS = 60.0  # how long a finished stage tries to send its last figures
_RETRY_SECONDS = 60.0  # between two attempts to reach MLflow while the stage works
_RUN_FILE = "mlflow.json"  # in the folder of work in progress: the id of its run
_MAX_METRICS_PER_CALL = 1000  # MLflow's limit
_ABSENT_ERROR_CODES = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"}


class Run:
    """A handle to log to an MLflow run by its id.

    No call fails because of MLflow: unsent figures are sent by a later call or by `close`. If the
    run `is_resumed`, figures that MLflow has for the same step are not sent. Only one thread may
    use it at a time.
    """

    def __init__(self, run_id: str, *, is_resumed: bool = False) -> None:
        self.run_id, self._is_resumed = run_id, is_resumed
        self._queued_metrics: list[tuple[str, float, int, int]] = []
        self._queued_calls: list[Callable[[Any], Any]] = []
        self._known_steps: dict[str, set[int]] = {}  # steps that MLflow has, by metric
        self._next_attempt = 0.0
        self._is_unreachable = False

    def log_metrics(self, figures: Mapping[str, float | None], *, step: int = 0) -> None:
        """Log figures by name; those that are None or not finite are left out.

        `step` is their training step.
        """
        self.log_steps([(step, figures)])

    def log_steps(self, rows: Iterable[tuple[int, Mapping[str, float | None]]]) -> None:
        """Log the figures of several training steps."""
        milliseconds = _time_in_ms()
        self._queued_metrics += [
            (name, float(value), milliseconds, step)
            for step, figures in rows
            for name, value in figures.items()
            if value is not None and isfinite(value)
        ]
        self._send()

    def log_artifact(self, path: Path) -> None:
        """Log a file or a folder as an artifact of the run."""
        absolute_path = str(path.absolute())
        name = "log_artifacts" if path.is_dir() else "log_artifact"
        self._queue_call(lambda client: getattr(client, name)(self.run_id, absolute_path))

    def set_tag(self, name: str, value: str) -> None:
        """Set a tag of the run."""
        public_value = hide_credentials(value)
        self._queue_call(lambda client: client.set_tag(self.run_id, name, public_value))

    def end(self, status: str) -> None:
        """Mark the run as ended with an MLflow status."""
        end_time = _time_in_ms()
        self._queue_call(lambda client: client.set_terminated(self.run_id, status, end_time))

    def close(self, wait: float = 10.0) -> int:
        """Send all queued figures and calls, for about `wait` seconds; return how many are left.

        This does not end the run.
        """
        deadline = time.monotonic() + wait
        self._next_attempt = 0.0
        while not self._send() and time.monotonic() < deadline:
            time.sleep(1)
            self._next_attempt = 0.0
        return len(self._queued_metrics) + len(self._queued_calls)

    def _queue_call(self, call: Callable[[Any], Any]) -> None:
        """Queue a repeatable call to MLflow, which follows all queued figures and calls."""
        self._queued_calls.append(call)
        self._send()

    def _send(self) -> bool:
        """Send everything that is queued; tell whether MLflow has received it."""
        if time.monotonic() < self._next_attempt:
            return False
        try:
            client = mlflow_client()
            self._send_metrics(client)
            while self._queued_calls:
                self._queued_calls[0](client)
                del self._queued_calls[0]
        except Exception as error:
            # MLflow may have stored some figures: ask it before sending them again.
            self._is_resumed = True
            self._known_steps.clear()
            if not self._is_unreachable:
                say(f"{explain_mlflow_error(error)}; figures are sent when it answers again")
            self._is_unreachable = True
            self._next_attempt = time.monotonic() + _RETRY_SECONDS
            return False
        if self._is_unreachable:
            say("MLflow answers again")
        self._is_unreachable = False
        return True

    def _send_metrics(self, client: Any) -> None:
        from mlflow.entities import Metric

        for name in {row[0] for row in self._queued_metrics} - self._known_steps.keys():
            history = client.get_metric_history(self.run_id, name) if self._is_resumed else []
            self._known_steps[name] = {metric.step for metric in history}
        while self._queued_metrics:
            batch, new_metrics = self._queued_metrics[:_MAX_METRICS_PER_CALL], []
            for row in batch:
                if row[3] not in self._known_steps[row[0]]:
                    self._known_steps[row[0]].add(row[3])
                    new_metrics.append(Metric(*row))
            if new_metrics:
                client.log_batch(self.run_id, metrics=new_metrics)
            del self._queued_metrics[: len(batch)]


@contextmanager
def start_run(
    stage: str,
    params: Any,
    *,
    inputs: Mapping[str, str],
    sources: Mapping[str, Path | Location] | None = None,
    folder: Location | None = None,
) -> Iterator[Run]:
    """Open an MLflow run of a stage for the block, and yield it.

    `params` are logged; `inputs` are digests of what the stage reads, by name, and `sources` their
    folders. With `folder`, the stage's work folder, an interrupted run is resumed.
    """
    check_mlflow()
    run_id = None
    with catch_mlflow_errors():
        client = mlflow_client()
        if folder and folder.exists(_RUN_FILE):
            run_id = folder.read_record(_RUN_FILE, dict[str, str]).get("run_id")
        is_resumed = run_id is not None and run_exists(run_id)
        if run_id is None or not is_resumed:
            run_id = _create_run(client, stage, params, inputs, sources or {})
            if folder:
                folder.write_json(_RUN_FILE, {"run_id": run_id})
        client.update_run(run_id, status="RUNNING")
    mlflow_run = Run(run_id, is_resumed=is_resumed)
    try:
        yield mlflow_run
    except BaseException as error:
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        with contextlib.suppress(Exception):  # the first error is the one to show
            _end_run(mlflow_run, status, wait=5)
        raise
    _end_run(mlflow_run, "FINISHED", wait=FLUSH_SECONDS)


def _end_run(mlflow_run: Run, status: str, *, wait: float) -> None:
    mlflow_run.end(status)
    if mlflow_run.close(wait):
        say(
            f"{public_uri()} is missing figures of run {mlflow_run.run_id}; the stage's outputs "
            "have all of them"
        )


def _create_run(
    client: Any,
    stage: str,
    params: Any,
    inputs: Mapping[str, str],
    sources: Mapping[str, Path | Location],
) -> str:
    from mlflow.entities import Dataset as Entry
    from mlflow.entities import DatasetInput, InputTag, Param
    from mlflow.exceptions import MlflowException

    locations = {name: _find_url(sources[name]) for name in inputs if name in sources}
    tags = {"stage": stage, **{f"digest.{name}": value for name, value in inputs.items()}}
    tags |= {f"dvc.{n}": os.environ[n] for n in ("DVC_STAGE", "DVC_EXP_NAME") if n in os.environ}
    tags |= origin.origin_tags()
    key = digest([stage, to_plain_dict(params), dict(inputs)])[:6]
    name = " ".join(filter(None, [stage, os.environ.get("DVC_EXP_NAME"), key]))
    run_id = str(
        client.create_run(experiment_id(client, stage), run_name=name, tags=tags).info.run_id
    )
    flat_values = flat_params(to_plain_dict(params)).items()
    client.log_batch(run_id, params=[Param(name, value) for name, value in flat_values])
    datasets = []
    for name, value in inputs.items():
        location = locations.get(name, name)
        source_type = "local" if location.startswith("file:") else location.partition(":")[0]
        source = json.dumps({"uri": location}, ensure_ascii=False)
        profile = json.dumps({"digest": value})
        dataset = Entry(name, value[:36], source_type, source, profile=profile)
        datasets.append(DatasetInput(dataset, [InputTag("mlflow.data.context", name)]))
    with contextlib.suppress(MlflowException):  # another run has just added the same dataset
        client.log_inputs(run_id, datasets)
    with contextlib.suppress(OSError):  # a server's artifact folder may not be writable here
        client.log_dict(run_id, origin.package_versions(), "environment.json")
    return run_id


def run_exists(run_id: str) -> bool:
    """Tell whether MLflow has a run with this id that the current project folder can continue."""
    from mlflow.exceptions import MlflowException

    client = mlflow_client()
    try:
        info = client.get_run(run_id).info
        old_path = folder_before_move(client.get_experiment(info.experiment_id))
        return info.lifecycle_stage == "active" and not old_path
    except MlflowException as error:
        if error.error_code in _ABSENT_ERROR_CODES:
            return False
        raise


def _find_url(source: Path | Location) -> str:
    """Return a path or URL as an absolute URL without a login."""
    if "://" in str(source):
        return hide_credentials(str(source))
    return Path(str(source)).absolute().as_uri()


def flat_params(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as MLflow params: text by dotted name, without logins."""
    flat_values: dict[str, str] = {}
    for key, item in values.items():
        if isinstance(item, dict):
            flat_values |= flat_params(item, f"{prefix}{key}.")
        else:
            flat_values[prefix + key] = str(hide_credentials_in(item))
    return flat_values


def _time_in_ms() -> int:
    return int(time.time() * 1000)
