"""Pools of Ray actors that work through a list of items, grow with the cluster and retry.

If no actor can be placed, the pool waits (`free_cores`) and gives up after a limit. An item whose
worker dies is retried a few times, each time with a message; then an error names the item. The
`ray` module is passed in, not imported here.

Ray Data's `map_batches` with a pool of actors, or `ray.util.ActorPool` with `max_task_retries`,
would replace most of `run_actors`. But they retry without a message and without naming the item,
wait for cores forever, and leave the items of a lost node waiting while other actors are idle.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from elmo.errors import Damaged
from elmo.io.memory import keep_freed_memory

from ..settings.cluster import Cluster
from ..terminal.progress import Progress, say
from .free_cores import POLL_SECONDS, WaitReport, placeable_workers

MAX_RETRIES = 3  # retries of an item whose worker died
SIZE_CHECK_SECONDS = 5.0  # between two checks of the size of the cluster


def run_actors(
    ray: Any,
    worker_type: Callable[..., Any],
    arguments: Sequence[Any],
    items: Sequence[Any],
    cluster: Cluster,
    progress: Progress,
    name_of: Callable[[Any], str],
) -> Iterator[Any]:
    """Yield what actors `worker_type(*arguments)` return for `items`, as they finish.

    `ray` is the connected module `ray`; `progress` counts the results. Messages use the label of
    `progress`, and `name_of(item)` for an item. Only actors that have started get items, so an
    actor that can't be placed delays none.
    """
    wait_report, last_check = WaitReport(progress.label, cluster), float("-inf")
    actor_class = _actor_class(ray, worker_type, arguments, cluster)
    queue, deaths = deque(items), Counter[str]()
    starts: dict[Any, Any] = {}  # actor by the reference of its start
    calls: dict[Any, tuple[Any, Any]] = {}  # actor and item by the reference of the result
    try:
        while queue or calls:
            if time.monotonic() - last_check > SIZE_CHECK_SECONDS:
                last_check = time.monotonic()
                # At least 1, so that an autoscaler sees that a core is needed.
                capacity = placeable_workers(ray, cpus=1, gpus=int(cluster.gpu))
                actor_limit = cluster.actors or max(1, capacity)
            for _ in range(len(starts), min(actor_limit - len(calls), len(queue))):
                actor = actor_class.remote()
                starts[actor.start.remote()] = actor
            references = ray.wait([*calls, *starts], num_returns=1, timeout=POLL_SECONDS)[0]
            if not references and not calls:
                wait_report.print_missing("a core" + " and a GPU" * cluster.gpu, ray)
            for reference in references:
                wait_report.reset()
                if has_item := reference in calls:
                    actor, item = calls.pop(reference)
                else:
                    actor, item = starts.pop(reference), None
                try:
                    result = get_result(ray, reference)
                except _loss_errors(ray) as error:
                    ray.kill(actor)
                    item_name = "a worker that was starting"
                    if has_item:
                        queue.appendleft(item)
                        item_name = name_of(item)[:200]
                    _count_death(deaths, progress.label, item_name, error)
                    continue
                if queue:
                    next_item = queue.popleft()
                    calls[actor.call.remote(next_item)] = actor, next_item
                else:
                    ray.kill(actor)
                if has_item:
                    progress.advance()
                    yield result
    except Exception:
        if calls:  # a call that fails after Ray has shut down prints a warning
            ray.wait(list(calls), num_returns=len(calls), timeout=5)
        raise
    finally:
        for actor in [*starts.values(), *(actor for actor, _ in calls.values())]:
            ray.kill(actor)


def get_result(ray: Any, reference: Any) -> Any:
    """Return `ray.get(reference)`; raise the remote function's own exception, not Ray's wrapper."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


def _count_death(deaths: Counter[str], label: str, name: str, error: Exception) -> None:
    """Count and print that a worker died at the item `name`; `error` is Ray's exception.

    Raises `Damaged`, with the item's name, after `MAX_RETRIES` retries.
    """
    deaths[name] += 1
    count, cause = deaths[name], type(error).__name__
    if count > MAX_RETRIES:
        raise Damaged(
            f"{label}: {name} crashed its worker {count} times ({cause}); check whether it is "
            "damaged, and whether the workers run out of memory"
        ) from None
    say(f"{label}: {name}: its worker died ({cause}); retry {count} of {MAX_RETRIES}")


def _actor_class(
    ray: Any, worker_type: Callable[..., Any], arguments: Sequence[Any], cluster: Cluster
) -> Any:
    """Return the class of the pool's actors. `start` makes the worker and raises its errors."""

    class Actor:
        """Makes a worker when it is started, and calls it with one item at a time."""

        def start(self) -> None:
            keep_freed_memory()
            self.instance = worker_type(*arguments)

        def call(self, item: Any) -> Any:
            return self.instance(item)

    options = {"num_cpus": 1, "num_gpus": int(cluster.gpu)}
    return ray.remote(**options, max_restarts=0, max_task_retries=0)(Actor)


def _loss_errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return Ray's exceptions for a lost worker, node or result."""
    names = "RayActorError WorkerCrashedError OutOfMemoryError NodeDiedError ObjectLostError"
    return tuple(getattr(ray.exceptions, name) for name in [*names.split(), "LocalRayletDiedError"])
