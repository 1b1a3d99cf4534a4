"""The only module that imports Ray: tasks over files, actors over shards, training on workers.

If `RAY_ADDRESS` is set, that cluster is used; otherwise Ray is started here while needed.
"""

import json
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from elmo.errors import ElmoError, first_line, reason_of
from elmo.io.folders import Flag
from elmo.io.location import Location, temporary_folder
from elmo.io.memory import keep_freed_memory
from elmo.settings import list_stop_signals

from .. import PACKAGE
from ..settings.cluster import Cluster
from ..terminal.progress import Progress, say, show_activity
from . import free_cores, pool
from .in_process import run_in_process

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUIET_SETTINGS = {  # turn off Ray's messages
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_LOCAL_SETTINGS = {  # for Ray Train on this machine; Ray's defaults are for clusters
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # saves a process; nobody reclaims this node
}
_THREAD_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # how threads wait for each other
SAME_STOP_SECONDS = 3.0  # signals within it are one stop: Ray and `elmo run` may both send one


@contextmanager
def session() -> Iterator[Any]:
    """Connect to Ray for the block, and yield the module `ray`.

    It connects to the cluster at `RAY_ADDRESS`, or else starts Ray on this machine and shuts it
    down at the end. Inside another session, it uses that session.
    """
    _set_ray_defaults()
    import ray

    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if not has_cluster():
        options |= {"address": "local", "include_dashboard": False}
        options |= {"object_store_memory": 512 << 20}
    root = str(PACKAGE.parent)
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    old_handler = signal.getsignal(signal.SIGTERM)
    job_config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))
    job_env = job_config.get("runtime_env") or {}
    env_vars = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    env_vars |= {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
    for name in job_env.get("env_vars", {}):  # Ray refuses a variable that the job also sets
        env_vars.pop(name, None)
    _start_ray(ray, options | {"runtime_env": {"env_vars": env_vars}})
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, old_handler)  # Ray has set its own
    try:
        yield ray
    finally:
        ray.shutdown()


def map_tasks(
    function: Callable[[Item], Result], items: Iterable[Item], *, cluster: Cluster, label: str
) -> Iterator[Result]:
    """Run `function` on each item as a Ray task; yield the results in the items' order.

    On one machine, the first items run in this process, and so do the others unless starting Ray is
    faster. An exception of `function` is raised unchanged. `label` names the work in messages.
    """

    def make_actor() -> Callable[[tuple[int, Item]], tuple[int, Result]]:
        return lambda numbered_item: (numbered_item[0], function(numbered_item[1]))

    results: dict[int, Result] = {}
    next_index = 0
    for index, result in map_actors(
        make_actor,
        [],
        enumerate(items),
        cluster=replace(cluster, gpu=False),
        label=label,
        name_of=lambda numbered_item: repr(numbered_item[1]),
        unit="shards",
    ):
        results[index] = result
        while next_index in results:
            yield results.pop(next_index)
            next_index += 1


def call_on_gpu(
    function: Callable[..., Result], *arguments: Any, cluster: Cluster, label: str
) -> Result:
    """Call a function on a cluster node that has a GPU, in this folder, which all nodes share;
    return its result.

    It waits for a free GPU as training does. `label` names the work in messages.
    """
    names = ("ELMO_", "MLFLOW_")
    variables = {name: value for name, value in os.environ.items() if name.startswith(names)}
    with session() as ray:
        worker_cluster = replace(cluster, workers=1, gpu=True)
        wait_report = free_cores.WaitReport(label, cluster)
        with free_cores.hold_cores(
            ray, worker_cluster, wait_report, is_own=not has_cluster()
        ) as group:
            strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
            options = {"num_cpus": cluster.cpus, "num_gpus": 1, "scheduling_strategy": strategy}
            reference = ray.remote(**options)(_call_in_folder).remote(
                os.getcwd(), variables, function, *arguments
            )
            result: Result = pool.get_result(ray, reference)
            return result


def _call_in_folder(
    folder: str, variables: dict[str, str], function: Callable[..., Result], *arguments: Any
) -> Result:
    os.environ.update(variables)
    os.chdir(folder)
    return function(*arguments)


def map_actors(
    make_actor: Callable[..., Any],
    arguments: Sequence[Any],
    items: Iterable[Item],
    *,
    cluster: Cluster,
    label: str,
    name_of: Callable[[Item], str] = repr,
    unit: str = "parts",
    threads: int = 1,
) -> Iterator[Any]:
    """Call `actor(item)` for each item on Ray actors `make_actor(*arguments)`; yield the results.

    They come in order of completion. An actor that dies is replaced, and its item is retried. On
    one machine, an actor in this process begins, and continues unless the rest would take longer
    than starting Ray. With several `threads`, they call it in parallel, and it must have a method
    `stop` that ends its calls early. In messages, `label` names the work, `name_of(item)` an item,
    and `unit` several items.
    """
    work = list(items)
    if not work:
        return
    with Progress(label, len(work), unit=unit) as progress:
        if _should_begin_here(work, cluster):
            yield from run_in_process(
                make_actor(*arguments),
                work,
                progress,
                threads=1 if cluster.actors == 1 else min(threads, len(work)),
                may_stop=cluster.actors == 0,
            )
        if not work:
            return
        with session() as ray:
            yield from pool.run_actors(ray, make_actor, arguments, work, cluster, progress, name_of)


def fit(
    loop: Callable[[dict[str, Any], int, int, str], Any],
    config: dict[str, Any],
    *,
    cluster: Cluster,
    label: str,
    name: str,
    storage: Location,
    stop_flag: Flag | Path,
) -> Any:
    """Run `loop(config, rank, size, device)` on each worker of Ray Train; return rank 0's result.

    With `cluster.workers` 0, the loop runs in this process, without Ray. If a worker is lost, all
    are restarted, and the loop resumes from its checkpoints in the run's folder `storage`;
    `cluster.restarts` is counted anew after each new checkpoint. An exception of the loop is raised
    unchanged. Stop signals reach remote workers as the flag `stop_flag`. `label` names the training
    in messages, `name` in Ray's dashboard.
    """
    if has_cluster() and cluster.workers == 0:
        raise ElmoError(
            f"RAY_ADDRESS is {os.environ['RAY_ADDRESS']} and workers is 0; to train on a cluster, "
            "set workers in cluster.yaml to 1 or more, or ELMO_WORKERS (elmo submit --env "
            "ELMO_WORKERS=1)"
        )
    if cluster.workers == 0:
        return loop(config, 0, 1, choose_device(cluster))
    _set_ray_defaults()
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.WARNING)
    folder = storage.absolute()
    # `max_failures` would also restart after an exception of the loop, such as bad input. Ray
    # counts one failed start per minute of waiting (on this machine, per half minute).
    start_failures = round(cluster.wait_minutes)
    failure_config = FailureConfig(max_failures=0, controller_failure_limit=start_failures)
    run_config = RunConfig(
        name=name,
        storage_path=str(folder.local or temporary_folder() / "ray-train"),
        failure_config=failure_config,
        worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(cluster.cpus)}},
    )
    scaling_config = ScalingConfig(
        num_workers=cluster.workers, use_gpu=cluster.gpu, resources_per_worker={"CPU": cluster.cpus}
    )

    def train() -> Any:
        trainer = TorchTrainer(
            _worker_loop(loop, config, gpu=cluster.gpu),
            torch_config=TorchConfig(backend="nccl" if cluster.gpu else "gloo"),
            scaling_config=scaling_config,
            run_config=run_config,
        )
        return trainer.fit().return_value

    checkpoints, restarts_left = (folder / "checkpoints").folders(), cluster.restarts
    while True:
        with session() as ray:
            wait_report = free_cores.WaitReport(label, cluster)
            with free_cores.hold_cores(ray, cluster, wait_report, is_own=not has_cluster()):
                pass  # Ray Train requests its own; other work may take them first
            try:
                return _call_stoppable(train, stop_flag)
            except TrainingFailedError as error:
                lost_worker = _describe_lost_worker(error)
                if (newest_checkpoints := (folder / "checkpoints").folders()) != checkpoints:
                    checkpoints, restarts_left = newest_checkpoints, cluster.restarts
                start_failure = getattr(error, "controller_failure", None)
                is_loss = isinstance(start_failure, ray.exceptions.RayActorError | None)
                if not (is_loss and restarts_left):
                    restarts_text = f" after restart {cluster.restarts} without a new checkpoint"
                    raise ElmoError(
                        f"{label}: {lost_worker}{restarts_text if is_loss else ''}; "
                        "find the cause in Ray's logs, add nodes, lower workers or raise "
                        "wait_minutes, then run the same command again to resume"
                    ) from error
                say(f"{label}: {lost_worker}; restarting from the newest checkpoint")
                restarts_left -= 1
                if start_failure is not None:
                    ray.shutdown()  # otherwise it keeps the cores of workers lost at their start


def _describe_lost_worker(error: Exception) -> str:
    """Return a few words about the lost worker and the cause; raise an exception of the loop
    unchanged. `error` is Ray Train's."""
    failures = {
        rank: getattr(failure, "cause", failure)
        for rank, failure in getattr(error, "worker_failures", {}).items()
    }
    for cause in failures.values():
        # Ray's error for a lost worker, or the RuntimeError of others whose connections broke
        is_loss = isinstance(cause, RuntimeError | OSError) or type(cause).__module__[:4] == "ray."
        if not is_loss:
            raise cause from None
    if not failures:
        cause = getattr(error, "controller_failure", error)
        return f"its workers did not start, or were lost while starting ({first_line(cause)})"
    rank = min(failures, key=lambda rank: (type(failures[rank]) is RuntimeError, rank))
    return f"worker {rank} lost ({type(failures[rank]).__name__}: {reason_of(failures[rank])})"


def choose_device(cluster: Cluster) -> str:
    """Return the device, `cuda` or `cpu`; without a cluster, refuse a GPU if there is none."""
    if cluster.gpu and not has_cluster() and not has_cuda():
        raise ElmoError("gpu is set and this machine has no CUDA device; set gpu: false")
    return "cuda" if cluster.gpu else "cpu"


def has_cuda() -> bool:
    """Tell whether this machine has a CUDA device."""
    import torch

    return torch.cuda.is_available()


def _call_stoppable(function: Callable[[], Result], stop_flag: Flag | Path) -> Result:
    """Call `function` in a thread. The first stop signal sets the flag `stop_flag`; a SIGINT more
    than `SAME_STOP_SECONDS` later raises `KeyboardInterrupt`."""
    stop_flag.unlink(missing_ok=True)
    stop_time = -SAME_STOP_SECONDS

    def handle_signal(signum: int, _: object) -> None:
        nonlocal stop_time
        signal_time = time.monotonic()
        if stop_flag.exists():
            if signum == signal.SIGINT and signal_time > stop_time + SAME_STOP_SECONDS:
                raise KeyboardInterrupt
            return
        stop_time = signal_time
        stop_flag.touch()
        say("stopping: saving a checkpoint")

    future: Future[Result] = Future()

    def run_function() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    handlers = {signum: signal.signal(signum, handle_signal) for signum in list_stop_signals()}
    try:
        threading.Thread(target=run_function, daemon=True).start()
        return future.result()
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        stop_flag.unlink(missing_ok=True)


def _start_ray(ray: Any, options: dict[str, Any]) -> None:
    """Start Ray or connect to it; try twice, because it may start too slowly on a busy machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address.startswith("http"):
        raise ElmoError(
            f"RAY_ADDRESS {address}: is the address of a Jobs API, which only elmo submit uses; "
            "set RAY_ADDRESS to Ray's address, such as HEAD:6379"
        )
    show_activity("waiting for Ray's head" if address else "waiting for Ray to start")
    for is_last in (False, True):
        try:
            ray.init(**options)
            show_activity("")
            return
        except Exception as error:
            ray.shutdown()
            reason = first_line(error)
        if address:
            raise ElmoError(
                f"RAY_ADDRESS {address}: no Ray cluster answers there ({reason}); start it, or "
                "unset RAY_ADDRESS to work on this machine"
            )
        if is_last:
            raise ElmoError(
                f"Ray failed twice to start on this machine ({reason}); free cores, memory and "
                "space in /tmp, then run the same command again"
            )
        say("Ray did not start in time; trying once more")


def _worker_loop(
    loop: Callable[[dict[str, Any], int, int, str], Any], config: dict[str, Any], *, gpu: bool
) -> Callable[[], Any]:
    """Return the function that each worker runs: it calls the loop with its rank and device.

    The config is sent inside this function, because Ray Train shows and keeps `train_loop_config`,
    and a URL in the config may have a login.
    """

    def run_worker() -> Any:
        from ray import train
        from ray.train.torch import get_device

        keep_freed_memory()
        context = train.get_context()
        device = str(get_device()) if gpu else "cpu"
        return loop(config, context.get_world_rank(), context.get_world_size(), device)

    return run_worker


def _should_begin_here(work: Sequence[Any], cluster: Cluster) -> bool:
    """Tell whether to begin work in this process: without a cluster, for one item, with `actors` 1,
    or with `actors` 0 if Ray is not running here."""
    ray = sys.modules.get("ray")
    is_running = ray is not None and ray.is_initialized()
    is_alone = len(work) < 2 or cluster.actors == 1
    return not has_cluster() and (is_alone or (cluster.actors == 0 and not is_running))


def has_cluster() -> bool:
    """Tell whether RAY_ADDRESS names a Ray cluster."""
    return bool(os.environ.get("RAY_ADDRESS"))


def _set_ray_defaults() -> None:
    """Set Ray's settings, most of which it reads on import, unless the user has set them."""
    settings = _QUIET_SETTINGS if has_cluster() else _QUIET_SETTINGS | _LOCAL_SETTINGS
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if not has_cluster() and "RAY_AUTH_MODE" not in os.environ:
        # Otherwise Ray would write a token into the user's home, for all clusters and for good.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
