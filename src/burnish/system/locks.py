"""A file, or a folder, that one process at a time may hold. Whatever ends a process, its locks go with it.

Linux and macOS lock an open file as a whole (fcntl). Windows locks bytes of it, which nobody else can then read
(msvcrt), so a byte far behind the file's end is taken. Where a system has neither, nothing is locked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from burnish.system.modules import if_there

FAR_BEHIND = 1 << 30
LOOKED_AGAIN = 0.05  # seconds
LOCK_FILE = ".burnish-lock"  # in a folder, where the folder itself cannot be locked


def take(handle: int) -> None:
    """Locks an open file, or raises BlockingIOError because somebody else holds it. Closing the file lets go of it."""
    if fcntl := if_there("fcntl"):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif msvcrt := if_there("msvcrt"):
        os.lseek(handle, FAR_BEHIND, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            raise BlockingIOError from None
        finally:
            os.lseek(handle, 0, os.SEEK_SET)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other process is in here with the same folder."""
    if if_there("fcntl"):
        handle = os.open(folder, os.O_RDONLY)
    else:
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while True:
            try:
                take(handle)
                break
            except BlockingIOError:
                time.sleep(LOOKED_AGAIN)
        yield
    finally:
        os.close(handle)
