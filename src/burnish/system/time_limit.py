"""An end for work that may have none."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Raises the error after so much of the processor's time, so that a busy machine ends the same work; for the main
    thread of a process. Windows has no such timer: there it is time by the clock.
    """
    if not hasattr(signal, "setitimer"):
        with _by_the_clock(seconds, error):
            yield
        return

    def stop(*_: object) -> None:
        raise error

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@contextmanager
def _by_the_clock(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Another thread has the interpreter raise it here, between two of Python's own steps."""
    worker, is_over, turn = threading.get_ident(), threading.Event(), threading.Lock()

    def stop() -> None:
        with turn:
            if not is_over.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker), ctypes.py_object(error))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with turn:
            is_over.set()
        timer.cancel()
