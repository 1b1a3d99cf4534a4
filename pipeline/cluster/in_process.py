"""Run work in this process, unless the rest takes so long that starting Ray pays off."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from ..terminal.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")
MIN_RAY_SECONDS = 15.0  # with less work, starting Ray does not pay off


def run_in_process(
    function: Callable[[Item], Result],
    items: list[Item],
    progress: Progress,
    *,
    threads: int,
    may_stop: bool,
) -> Iterator[Result]:
    """Call `function` on each item in this process, and yield the results as they are ready.

    Items are removed from `items` when they begin. With `may_stop`, it ends as soon as starting Ray
    would pay off for the items that are left. The time per item is taken from items that begin
    after the first result, because the first ones also load code and models. With several
    `threads`, `function` is called in parallel; to end early, its `stop()` is called.
    """
    # Whether the time of an item is typical of the others.
    is_typical_by_future: dict[Future[tuple[Result, float]], bool] = {}
    has_first_result, should_stop = False, False
    with _open_executor(threads) as executor:
        try:
            while items or is_typical_by_future:
                while items and not should_stop and len(is_typical_by_future) < threads:
                    future = executor.submit(_time_call, function, items.pop(0))
                    is_typical_by_future[future] = has_first_result
                if not is_typical_by_future:
                    return
                for future in wait(is_typical_by_future, return_when=FIRST_COMPLETED).done:
                    is_typical = is_typical_by_future.pop(future)
                    result, seconds = future.result()
                    is_typical, has_first_result = is_typical or seconds > MIN_RAY_SECONDS, True
                    if may_stop and is_typical and len(items) * seconds > MIN_RAY_SECONDS * threads:
                        should_stop = True
                    progress.advance()
                    yield result
        except BaseException:
            if is_typical_by_future:
                function.stop()  # type: ignore[attr-defined]
            raise


def _time_call(function: Callable[[Item], Result], item: Item) -> tuple[Result, float]:
    start_time = time.monotonic()
    return function(item), time.monotonic() - start_time


def _open_executor(threads: int) -> AbstractContextManager[Any]:
    if threads == 1:
        return nullcontext(_InlineExecutor())
    from elmo.nn.threads import single_threaded_pool

    return single_threaded_pool(threads)


class _InlineExecutor:
    """An executor that calls a function in this thread, so that a signal interrupts it."""

    def submit(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(function(*arguments))
        return future
