"""Pools of Ray actors that work through a list of items, grow with the cluster and retry.

The pool waits for actors that can't be placed (`free_cores`) and gives up after a limit.
An item whose worker dies is retried a few times, each with a line; then an error names the item.
This file is given Ray and imports it nowhere.

Ray Data's `map_batches` with a pool of actors, or `ray.util.ActorPool` with `max_task_retries`,
would replace about 115 of these 200 lines. But they retry without a line and without naming the
item, and wait for cores without end; and an item of an actor whose node is lost waits for that
actor, while others are idle.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from elmo.errors import Damaged
from elmo.nn.memory import keep_freed_memory

from ..settings.cluster import Cluster
from ..terminal.progress import Progress, say
from .free_cores import PAUSE_SECONDS, WaitReport, placeable_workers

RETRIES = 3  # of an item whose worker died
SIZE_CHECK_SECONDS = 5.0  # between two checks of the size of the cluster


def run_actors(
    ray: Any,
    worker_type: Callable[..., Any],
    arguments: Sequence[Any],
    work: Sequence[Any],
    cluster: Cluster,
    retries: "RetryCount",
    progress: Progress,
) -> Iterator[Any]:
    """Yield what actors `worker_type(*arguments)` return for the items of `work`, as they finish.

    `ray` is the module `ray`, connected; `retries` counts the workers that die, `progress` the
    results. Only actors that have started are given items, so one that can't be placed holds up
    nothing.
    """
    wait_report, last_check = WaitReport(retries.label, cluster), float("-inf")
    actors = _Actors(ray, _actor_class(ray, worker_type, arguments, cluster), retries)
    queue = deque(work)
    try:
        while queue or actors.busy:
            if time.monotonic() - last_check > SIZE_CHECK_SECONDS:
                last_check, actor_limit = time.monotonic(), _actor_limit(ray, cluster)
            while len(actors) < min(actor_limit, len(queue) + len(actors.busy)):
                actors.start()
            while queue and actors.idle:
                actors.assign(queue.popleft())
            references = actors.wait_any()
            if not references and not actors.busy:
                wait_report.report_missing("a core" + " and a GPU" * cluster.gpu, ray)
            for reference in references:
                wait_report.reset()
                if reference in actors.starting:
                    actors.add_started(reference)
                    continue
                item = actors.busy[reference][1]
                try:
                    result = actors.result(reference)
                except _loss_errors(ray):  # counted
                    queue.appendleft(item)
                    continue
                progress.advance()
                yield result
    except Exception:
        actors.finish()
        raise
    finally:
        actors.kill()


class _Actors:
    """Actors that are starting, idle, or busy with an item."""

    def __init__(self, ray: Any, actor_class: Any, retries: "RetryCount") -> None:
        self.ray, self.actor_class, self.retries = ray, actor_class, retries
        self.starting: dict[Any, Any] = {}  # by what Ray gives back once they have started
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, Any]] = {}  # the actor and its item, by its result

    def __len__(self) -> int:
        return len(self.starting) + len(self.idle) + len(self.busy)

    def start(self) -> None:
        """Start another actor."""
        actor = self.actor_class.remote()
        self.starting[actor.start.remote()] = actor

    def assign(self, item: Any) -> None:
        """Assign an item to an idle actor."""
        actor = self.idle.pop()
        self.busy[actor.call.remote(item)] = (actor, item)

    def wait_any(self) -> list[Any]:
        """Return the references that are ready: of actors that started, or of finished items."""
        references = [*self.busy, *self.starting]
        finished: list[Any] = self.ray.wait(references, num_returns=1, timeout=PAUSE_SECONDS)[0]
        return finished

    def add_started(self, reference: Any) -> None:
        """Add an actor whose start has ended to the idle ones, or count it as lost."""
        actor = self.starting.pop(reference)
        try:
            get_result(self.ray, reference)
            self.idle.append(actor)
        except _loss_errors(self.ray) as error:
            self.retries.count(None, error)

    def result(self, reference: Any) -> Any:
        """Return the result of an item; where its actor was lost, count that and raise."""
        actor, item = self.busy.pop(reference)
        try:
            result = get_result(self.ray, reference)
        except _loss_errors(self.ray) as error:
            self.ray.kill(actor)
            self.retries.count(item, error)
            raise
        self.idle.append(actor)
        return result

    def finish(self) -> None:
        """Wait for busy actors: one that fails after Ray has shut down prints a complaint."""
        if self.busy:
            self.ray.wait(list(self.busy), num_returns=len(self.busy), timeout=5)

    def kill(self) -> None:
        """Kill all actors, which frees their cores and GPUs."""
        for actor in [*self.starting.values(), *self.idle, *(a for a, _ in self.busy.values())]:
            self.ray.kill(actor)


def get_result(ray: Any, reference: Any) -> Any:
    """Return `ray.get(reference)`; raise the remote function's own exception, not Ray's wrapper."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None


def _actor_limit(ray: Any, cluster: Cluster) -> int:
    """Return how many actors may work at a time: the setting, or as many as fit on the cluster.

    It is at least 1, so that an autoscaler sees that a core is needed.
    """
    return cluster.actors or max(1, placeable_workers(ray, cpus=1, gpus=int(cluster.gpu)))


class RetryCount:
    """A count of the deaths of each item's worker; an item that has too many is an error.

    In messages `label` is the work's name, and `name(item)` that of an item.
    """

    def __init__(self, label: str, name: Callable[[Any], str]) -> None:
        self.label, self.name = label, name
        self.deaths: Counter[str] = Counter()

    def count(self, item: Any, error: Exception) -> None:
        """Count and print that the worker of `item` died; None is a worker that had none yet.

        `error` is what Ray raised. Raises `Damaged`, naming the item, after `RETRIES` retries.
        """
        name = "a worker that was starting" if item is None else self.name(item)[:200]
        self.deaths[name] += 1
        times = self.deaths[name]
        cause = type(error).__name__
        if times > RETRIES:
            raise Damaged(
                f"{self.label}: {name} crashed its worker {times} times ({cause}); check whether "
                "it is damaged or the workers are out of memory"
            ) from None
        say(f"{self.label}: {name}: its worker died ({cause}); retry {times} of {RETRIES}")


def _actor_class(
    ray: Any, worker_type: Callable[..., Any], arguments: Sequence[Any], cluster: Cluster
) -> Any:
    """Return the class of the pool's actors. Each makes its worker in `start`, which raises the
    worker's own errors."""

    class Actor:
        """Makes its worker when it is started, and hands it one item at a time."""

        def start(self) -> None:
            keep_freed_memory()
            self.instance = worker_type(*arguments)

        def call(self, item: Any) -> Any:
            return self.instance(item)

    options = {"num_cpus": 1, "num_gpus": int(cluster.gpu)}
    return ray.remote(**options, max_restarts=0, max_task_retries=0)(Actor)


def _loss_errors(ray: Any) -> tuple[type[Exception], ...]:
    """Return the exceptions by which Ray reports a lost worker, node or result."""
    names = "RayActorError WorkerCrashedError OutOfMemoryError NodeDiedError ObjectLostError"
    return tuple(getattr(ray.exceptions, name) for name in [*names.split(), "LocalRayletDiedError"])
