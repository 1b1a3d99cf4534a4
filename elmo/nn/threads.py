"""The number of threads that torch uses: one, for equal bits, or one in each thread of a pool."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Result = TypeVar("Result")
_LOCK = threading.Lock()  # for `_threads_inside` and `_default_threads`
_threads_inside = 0  # threads that are in `one_thread`
_default_threads = 1  # torch's number in a new thread, if no thread is in `one_thread`
_this_thread = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread for the duration of the context; equal input then gives equal bits.

    Several threads can be in this context at once, and threads that start meanwhile use one too.
    torch keeps this number for each thread, and another for new threads; the last thread to leave
    restores the one for new threads.
    """
    global _threads_inside, _default_threads
    if getattr(_this_thread, "is_inside", False):
        yield
        return
    with _LOCK:
        thread_count = torch.get_num_threads()
        if not _threads_inside:
            _default_threads = _call_in_new_thread(torch.get_num_threads)
        elif thread_count == 1:  # this thread started while others were inside
            thread_count = _default_threads
        _threads_inside += 1
        torch.set_num_threads(1)
    _this_thread.is_inside = True
    try:
        yield
    finally:
        _this_thread.is_inside = False
        with _LOCK:
            _threads_inside -= 1
            torch.set_num_threads(thread_count)
            if not _threads_inside and thread_count != _default_threads:
                _call_in_new_thread(lambda: torch.set_num_threads(_default_threads))


def _call_in_new_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread that has computed nothing yet."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


@contextmanager
def single_threaded_pool(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `count` threads, in each of which torch uses one thread. If the block raises
    an exception, work that has not begun is cancelled."""

    def start_thread() -> None:
        torch.set_num_threads(1)
        _this_thread.is_inside = True

    with one_thread(), ThreadPoolExecutor(count, initializer=start_thread) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
