"""The memory of this process between two steps of long work."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Keep memory that is freed in this process, to be used again, until it ends; call it before
    long work, in a process that does nothing else.

    glibc returns each large array to the system when it is freed, so every training step asks for
    its memory anew, a page at a time. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 1 << 30)
        mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
