"""The one file that talks to Ray: tasks over files, actors over shards, training on workers.

`RAY_ADDRESS` set means that cluster; unset means a Ray started here for as long as it is needed.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from pipeline.params import Cluster

Item = TypeVar("Item")
Result = TypeVar("Result")

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def session() -> Iterator[Any]:
    """Connect to Ray, and shut down what was started here."""
    _quiet()
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if "RAY_ADDRESS" not in os.environ:
        quiet |= {"address": "local", "include_dashboard": False}
        quiet |= {"object_store_memory": 512 << 20}
    here = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    terminated = signal.getsignal(signal.SIGTERM)
    ray.init(**quiet, runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}})
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)  # Ray has set its own
    try:
        yield ray
    finally:
        ray.shutdown()


def tasks(
    function: Callable[[Item], Result], items: Iterable[Item], *, cluster: Cluster, label: str
) -> Iterator[Result]:
    """Run `function` on each item as a Ray task; yield the results in the items' order.

    A single item is run here: starting Ray would take longer. An exception of the function's is
    raised as it is.
    """
    work = list(items)
    if len(work) < 2:
        yield from map(function, work)
        return
    with session() as ray:
        remote = ray.remote(num_cpus=1, max_retries=3)(function)
        progress = Progress(label, len(work))
        waiting = {}
        done: dict[int, Any] = {}
        feed = iter(enumerate(work))
        shown = 0
        width = 2 * slots(cluster)
        while shown < len(work):
            while len(waiting) + len(done) < width and (more := next(feed, None)) is not None:
                waiting[remote.remote(more[1])] = more[0]
            if waiting:
                ready, _ = ray.wait(list(waiting), num_returns=1)
                for reference in ready:
                    done[waiting.pop(reference)] = _get(ray, reference)
                    progress.advance()
            while shown in done:
                yield done.pop(shown)
                shown += 1


def actors(
    kind: Callable[..., Any],
    arguments: Sequence[Any],
    items: Iterable[Item],
    *,
    cluster: Cluster,
    label: str,
) -> Iterator[Any]:
    """Give each item to one of several actors `kind(*arguments)`, each called as `actor(item)`.

    Results come in the order of completion. An actor that dies is started again and its item is
    done again. With one item the work is done here.
    """
    work = list(items)
    if len(work) < 2:
        made = kind(*arguments) if work else None
        yield from (made(item) for item in work if made is not None)
        return
    with session() as ray:

        class _Actor:
            def __init__(self) -> None:
                self.made = kind(*arguments)

            def do(self, item: Any) -> Any:
                return self.made(item)

        many = min(slots(cluster), len(work))
        cores = ray.cluster_resources().get("CPU", 1)
        share = min(1.0, int(1000 * cores / many) / 1000)  # more actors than cores share them
        gpus = 1 if cluster.gpu else 0
        remote = ray.remote(num_cpus=share, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(
            _Actor
        )
        pool = [remote.remote() for _ in range(many)]
        progress = Progress(label, len(work))
        feed = iter(work)
        busy = {actor.do.remote(item): actor for actor, item in zip(pool, feed, strict=False)}
        try:
            while busy:
                (reference,), _ = ray.wait(list(busy), num_returns=1)
                actor = busy.pop(reference)
                result = _get(ray, reference)
                progress.advance()
                if (item := next(feed, None)) is not None:
                    busy[actor.do.remote(item)] = actor
                yield result
        except Exception:
            if busy:  # what fails after Ray has gone complains on the terminal
                ray.wait(list(busy), num_returns=len(busy), timeout=5)
            raise
        for actor in pool:
            ray.kill(actor)


def dataset(read: Callable[[Item], Iterable[dict[str, Any]]], items: Sequence[Item]) -> Any:
    """A Ray Data dataset of the rows that `read` gives of each item, read where Ray has room.

    The caller's Ray is used: open a `session` around whatever consumes it.
    """
    import ray.data

    work = ray.data.from_items(
        [{"item": item} for item in items], override_num_blocks=max(1, len(items))
    )
    return work.flat_map(lambda row: read(row["item"]))


def fit(
    loop: Callable[[dict[str, Any], int, int, str], Any],
    config: dict[str, Any],
    *,
    cluster: Cluster,
    name: str,
    storage: Path,
    stop: Path,
) -> Any:
    """Train: run `loop(config, rank, size, device)` on every worker under Ray Train.

    Returns what rank 0 returned. With `cluster.workers` 0 the loop runs in this process (Ray
    Train's local mode). A worker that dies is started again with all the others, and the loop goes
    on from its own checkpoints. An exception of the loop's is raised as it is. SIGINT and SIGTERM
    reach workers elsewhere as the file `stop`.
    """
    _quiet()
    from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    logging.getLogger("ray.train").setLevel(logging.WARNING)
    distributed = cluster.workers > 0
    run = RunConfig(
        name=name,
        storage_path=str(storage.absolute()),
        failure_config=FailureConfig(max_failures=3),
        worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(cluster.cpus)}}
        if distributed
        else None,
    )
    scaling = ScalingConfig(
        num_workers=cluster.workers,
        use_gpu=cluster.gpu,
        resources_per_worker={"CPU": cluster.cpus} if distributed else None,
    )
    with session() if distributed else nullcontext():
        trainer = TorchTrainer(
            _Entry(loop),
            train_loop_config=config,
            torch_config=TorchConfig(backend="nccl" if cluster.gpu else "gloo"),
            scaling_config=scaling,
            run_config=run,
        )
        try:
            fitted = _stoppable(trainer.fit, stop) if distributed else trainer.fit()
            return fitted.return_value
        except TrainingFailedError as error:
            for cause in getattr(error, "worker_failures", {}).values():
                raise getattr(cause, "cause", cause) from None
            raise


def _stoppable(function: Callable[[], Result], stop: Path) -> Result:
    """Call `function` in a thread of its own; a first signal makes the file `stop`, a second one
    interrupts."""
    stop.unlink(missing_ok=True)

    def stopped(*_: object) -> None:
        if stop.exists():
            raise KeyboardInterrupt
        stop.touch()
        print("  stopping: saving a checkpoint", file=sys.stderr, flush=True)

    done: Future[Result] = Future()

    def call() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    old = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        threading.Thread(target=call, daemon=True).start()
        return done.result()
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        stop.unlink(missing_ok=True)


class _Entry:
    """What a worker runs: the loop, told which worker it is."""

    def __init__(self, loop: Callable[[dict[str, Any], int, int, str], Any]) -> None:
        self.loop = loop
        self.__name__ = loop.__name__

    def __call__(self, config: dict[str, Any]) -> Any:
        from ray import train
        from ray.train.torch import get_device

        context = train.get_context()
        rank, size = context.get_world_rank(), context.get_world_size()
        return self.loop(config, rank, size, str(get_device()))


def slots(cluster: Cluster) -> int:
    """How many tasks or actors work at a time."""
    import ray

    here = ray.cluster_resources().get("CPU", 1) if ray.is_initialized() else os.cpu_count() or 1
    return cluster.actors or max(1, int(here))


class Progress:
    """One line on a terminal that tells how far the work is, and how long it will take."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self.began = self.shown = time.monotonic()

    def advance(self) -> None:
        """One more item is done."""
        self.done += 1
        now = time.monotonic()
        if self.done < self.total and now - self.shown < 1:
            return
        self.shown = now
        left = (now - self.began) / self.done * (self.total - self.done)
        end = "\n" if self.done == self.total else ""
        if sys.stderr.isatty():
            line = f"\r  {self.label}: {self.done}/{self.total}, {left:.0f} s left "
            print(line, end=end, file=sys.stderr, flush=True)


def _quiet() -> None:
    """Ray's own chatter off, before it is imported; what the user set stays."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")


def _get(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
