"""Files that survive a power cut, are no links, and take another's place: as far as a system can do that."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

IS_WINDOWS = os.name == "nt"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", None)
REPLACE_SECONDS = 5.0  # for whoever reads the old file, on Windows


def to_disk(path: Path) -> None:
    """Returns when what was written to a file or folder would survive a power cut. Windows opens no folders: what is in
    one is then as safe as its file system makes it.
    """
    if IS_WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)  # Windows syncs only what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_no_link(path: str, flags: int, mode: int = 0o666) -> int:
    """`os.open`, but a link ends in ELOOP. Where the kernel cannot refuse one, it is looked for first."""
    if NO_FOLLOW is None and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return os.open(path, flags | (NO_FOLLOW or 0), mode)


def replace(source: Path, target: Path) -> None:
    """Puts a file in the place of another. Windows refuses that while somebody reads the other: it is tried again."""
    end = time.monotonic() + (REPLACE_SECONDS if IS_WINDOWS else 0.0)
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)


def stand_in_for(file: Path, place: Path) -> None:
    """The same file at another place: a link, or, where a user may make none, a copy."""
    for link in (os.symlink, os.link):
        try:
            link(file, place)
            return
        except (OSError, NotImplementedError):
            continue
    shutil.copyfile(file, place)
