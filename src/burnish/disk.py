"""Files that survive: written whole, and on the disk when a call returns."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from burnish.errors import InputError


def to_disk(path: Path) -> None:
    """Returns when what was written to a file or folder would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_to_disk(folder: Path) -> None:
    """The same for a folder and the files in it."""
    for file in sorted(folder.iterdir()):
        to_disk(file)
    to_disk(folder)


def write_whole(path: Path, text: str) -> None:
    """The file is there completely, on the disk, or as it was before."""
    scratch = path.with_name(f".writing-{path.name}")
    scratch.write_text(text, encoding="utf-8")
    to_disk(scratch)
    scratch.replace(path)
    to_disk(path.parent)


def free_space(folder: Path) -> str:
    try:
        return megabytes(shutil.disk_usage(folder).free)
    except OSError:
        return "an unknown number of bytes"


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:.0f} MB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} kB"


def folder_inside(root: Path, name: str) -> Path:
    """A folder in the root, and not by a link somewhere else."""
    folder = root / name
    if not folder.resolve().is_relative_to(root.resolve()):
        raise InputError(f"{folder} leads out of {root}; choose another run_name")
    return folder
