"""The memory of this process between two steps of long work."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Keep memory that is freed in this process for later use, until the process ends; call it
    before long work, in a process that does nothing else.

    glibc returns each large array to the system when it is freed, so every training step requests
    its memory again, page by page. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
