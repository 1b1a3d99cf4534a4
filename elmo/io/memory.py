"""Keeps freed memory in this process between the steps of long work."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt


def keep_freed_memory() -> None:
    """Keep memory that this process frees for later use, until the process ends; call it before
    long work, in a process that does nothing else.

    Otherwise glibc returns each freed large array to the system, so that every training step
    requests its memory again, page by page. Without glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
