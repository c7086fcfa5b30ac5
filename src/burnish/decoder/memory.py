"""Memory of this process."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil


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
