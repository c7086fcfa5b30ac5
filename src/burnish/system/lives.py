"""Processes that end with another, or go on without it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def end_with(starter: int) -> None:
    """This process does not outlive the one that started it, even if it lets no other thread run (a runaway regular
    expression): on Linux the kernel ends it. It does so when the thread ends that started this process, and a starter
    that goes on without that thread starts another. Elsewhere a thread looks once a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    is_there = _is_child_of if os.name != "nt" else _watch(starter)
    if not is_there(starter):  # it was gone before the kernel was asked
        os._exit(1)
    threading.Thread(target=_leave_with, args=(starter, is_there), daemon=True).start()


def _is_child_of(starter: int) -> bool:
    return os.getppid() == starter


def _watch(starter: int) -> Callable[[int], bool]:
    """On Windows a process keeps its parent's number for ever, and that parent may be a launcher of Python's."""
    import psutil

    try:
        watched = psutil.Process(starter)
    except psutil.NoSuchProcess:
        return lambda _: False
    return lambda _: watched.is_running()


def _leave_with(starter: int, is_there: Callable[[int], bool]) -> None:
    while is_there(starter):
        time.sleep(1.0)
    os._exit(1)


def of_its_own() -> dict[str, Any]:
    """Options of Popen: neither the end of this process nor a Ctrl-C in its terminal touches the other."""
    if (group := getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", None)) is not None:
        return {"creationflags": group}
    return {"start_new_session": True}
