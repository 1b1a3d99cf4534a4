"""The number of threads that torch computes on: one here, for equal bits; one in each thread of a
pool; or a given number in a new process."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread for the duration of the context; equal input then gives equal
    bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_thread_each(count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `count` threads, in each of which torch computes on one thread.

    Where the block ends by an exception, what has not begun is given up.
    """
    own = partial(torch.set_num_threads, 1)
    with one_thread(), ThreadPoolExecutor(count, initializer=own) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def module_command(module: str, *, threads: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment that run a module of this package in a new process,
    where torch computes on `threads` threads."""
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    # -P: else a random.py in the current folder would be imported in place of Python's.
    return [sys.executable, "-P", "-m", module], os.environ | variables
