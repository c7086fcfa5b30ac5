"""Memory of this process, and the machine that it runs on."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from burnish.system.modules import if_there

MALLOC_MMAP_THRESHOLD = -3  # its name in malloc.h is M_MMAP_THRESHOLD


def machine() -> dict[str, int]:
    """Cores that this process may use, and the machine's memory in GiB."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cores": cores, "memory_gib": round(psutil.virtual_memory().total / 2**30)}


def peak_bytes() -> int:
    """The most memory that this process has held."""
    if sys.platform == "linux":  # getrusage would begin with the peak of the process that started this one
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) * 1024
    if resource := if_there("resource"):
        peak = int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        return peak if sys.platform == "darwin" else peak * 1024
    now = psutil.Process().memory_info()
    return int(getattr(now, "peak_wset", now.rss))  # Windows


def held_bytes() -> int:
    """The memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)


def give_back_at_once() -> None:
    """From now on the memory of a large tensor goes back to the system when the tensor is freed, where the C library
    can be told so. It would keep it for the next ones, which do not always fit in.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").mallopt(MALLOC_MMAP_THRESHOLD, 2**20)


def give_back() -> None:
    """What was freed goes back to the system, where the C library can be told so."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL("libc.so.6").malloc_trim(0)
