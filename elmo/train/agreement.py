"""The joint decisions of all training workers: when to stop, and when to save.

Shapes: L layers, S directions, B rows, W projection or cells.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elmo.errors import ElmoError
from elmo.io.folders import Flag
from elmo.nn.lstm import LSTMState
from elmo.settings import list_stop_signals
from elmo.train.step import WorkerGroup

MAX_STEPS_BETWEEN_VOTES = 10
FLAG_CHECK_SECONDS = 1.0  # between two checks for the stop flag


class StopAndSave:
    """Lets all workers agree whether to stop, and whether to save a checkpoint because `minutes`
    have passed since the last one."""

    def __init__(self, workers: WorkerGroup, *, minutes: float) -> None:
        self.workers, self.minutes = workers, minutes
        self.last_save_time = time.monotonic()
        self._next_step = 0  # the step after which all workers next agree
        self._last_vote = 0, time.monotonic()  # the step and time of the last agreement

    def note_checkpoint(self) -> None:
        """Start counting the time to the next checkpoint."""
        self.last_save_time = time.monotonic()

    def agree(
        self, step: int, is_interrupted: Callable[[], bool], *, is_urgent: bool
    ) -> tuple[bool, bool]:
        """Return whether any worker should stop, and whether a checkpoint is due by the first
        worker's clock.

        To agree, the workers wait for each other: about every second, at least every ten steps, and
        now if `is_urgent`.
        """
        if self.workers.size > 1 and step < self._next_step and not is_urgent:
            return False, False
        time_now = time.monotonic()
        is_checkpoint_due = time_now - self.last_save_time >= 60 * self.minutes
        steps_per_second = (step - self._last_vote[0]) / max(1e-9, time_now - self._last_vote[1])
        values = [float(is_checkpoint_due), min(MAX_STEPS_BETWEEN_VOTES, steps_per_second)]
        values = values if self.workers.rank == 0 else [0.0, 0.0]
        stops, save_votes, steps = self.workers.sum_over_workers([float(is_interrupted()), *values])
        self._last_vote, self._next_step = (step, time_now), step + max(1, int(steps))
        return stops > 0, save_votes > 0


def is_true_on_any_worker(workers: WorkerGroup, condition: bool) -> bool:
    """Tell whether a condition holds on any worker; all must call it together."""
    return workers.sum_over_workers([float(condition)])[0] > 0


def gather_rows(state: LSTMState, workers: WorkerGroup, *, rows: int) -> LSTMState:
    """Return the state of all workers' rows, in order; `rows` is their number."""
    if workers.size == 1:
        return state
    counts = [len(WorkerGroup(rank, workers.size).own_rows(rows)) for rank in workers.ranks]
    gathered_tensors = []
    for own_LSBW in state:
        L, S, B, W = own_LSBW.shape
        padded_LSBW = own_LSBW.new_zeros(L, S, max(counts), W)
        padded_LSBW[:, :, :B] = own_LSBW
        padded_parts = [torch.empty_like(padded_LSBW) for _ in counts]
        dist.all_gather(padded_parts, padded_LSBW)
        unpadded_parts = [part[:, :, :n] for part, n in zip(padded_parts, counts, strict=True)]
        gathered_tensors.append(torch.cat(unpadded_parts, 2))
    return LSTMState(*gathered_tensors)


@contextmanager
def interruptible(stop_flag: Flag | Path | None) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a stop signal has arrived or the `stop_flag` flag exists.

    A thread checks for the flag, because at a URL this takes a request, and no step should wait for
    it.
    """
    stop_event, end_event = threading.Event(), threading.Event()

    def watch() -> None:
        assert stop_flag is not None
        while not (stop_event.is_set() or end_event.wait(FLAG_CHECK_SECONDS)):
            with suppress(ElmoError, OSError):  # retried at the next check
                if stop_flag.exists():
                    stop_event.set()

    handlers: list[tuple[signal.Signals, Any]] = []
    if threading.current_thread() is threading.main_thread():
        for signum in list_stop_signals():
            handlers.append((signum, signal.signal(signum, lambda *_: stop_event.set())))
    if stop_flag is not None and stop_flag.exists():
        stop_event.set()
    if stop_flag is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield stop_event.is_set
    finally:
        end_event.set()
        for signum, handler in handlers:
            signal.signal(signum, handler)
