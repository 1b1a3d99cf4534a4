"""Helper processes, which end with the process that started them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from elmo.io.memory import keep_freed_memory


@contextmanager
def helper_process(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    """Start a process that calls `target` on one thread. When the block or this process ends, it is
    ended too, whatever it is doing. The arguments are pickled."""
    process = get_context("spawn").Process(target=_run, args=(target, arguments), daemon=True)
    resource_tracker.ensure_running()  # or `start` does so, which unblocks SIGINT
    # The process ignores Ctrl-C, which this one handles.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def _run(target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    target(*arguments)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
