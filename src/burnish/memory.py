"""Memory of this process: how much it holds, and keeping what it has been given."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

# glibc's names for what mallopt sets (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Asks the C library to keep freed memory for the next tensor instead of handing it back to the system.

    By default every tensor of more than some megabytes is new memory, which the system must fill with zeros page by
    page before the first write: on a CPU that took a fifth of a training pass. Peak memory stays what it was. Only
    glibc knows this setting; elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_TOP_PAD, 2**26)


def peak_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def held_bytes() -> int:
    """The memory that this process holds now, or at most (where the system does not tell: its peak)."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else peak_bytes()
