"""Memory of this process: how much it holds, and keeping what it has been given."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import psutil

# glibc's names for what mallopt sets (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Asks the C library to keep freed memory for the next tensor instead of handing it back to the system.

    By default every tensor of more than some megabytes is new memory, which the system must fill with zeros page by
    page before the first write; on a CPU that takes a good part of a training pass. The setting holds for the whole
    process, which then keeps its peak until it ends. Only glibc (Linux) knows it; elsewhere nothing happens.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)
        libc.mallopt(_TOP_PAD, 2**26)


def peak_bytes() -> int:
    """The most memory that this process has held."""
    if sys.platform == "linux":  # getrusage would begin with the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_bytes() -> int:
    """The memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)
