"""Files that survive: written whole, and on the disk when a call returns. And files that are where they say they are.

A run folder may have come from somebody else. A symbolic link in it would make us read or write what it leads to, and a
link to a disk that is not mounted would make a run look as if it had never begun. So a run folder holds plain files and
folders only, and whatever is opened in it is asked for by `inside`. The run folder itself may be reached by a link.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from burnish.errors import InputError
from burnish.system.files import open_no_link, replace, to_disk


def folder_to_disk(folder: Path) -> None:
    """The same for a folder and all that is in it."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            folder_to_disk(path)
        else:
            to_disk(path)
    to_disk(folder)


def write_whole(path: Path, text: str) -> None:
    """The file is there completely, on the disk, or as it was before."""
    scratch = path.with_name(f".writing-{path.name}")
    scratch.unlink(missing_ok=True)  # of a process that was killed; a link is removed, not what it leads to
    with open(scratch, "x", encoding="utf-8", newline="\n", opener=without_links) as out:
        out.write(text)
    to_disk(scratch)
    replace(scratch, path)
    to_disk(path.parent)


def fresh_folder(scratch: Path) -> Path:
    """An empty folder, whatever a process that was killed has left under its name."""
    if scratch.is_symlink() or scratch.is_file():
        scratch.unlink()
    elif scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)
    return scratch


def free_name(path: Path) -> Path:
    """The path itself, or the first of `path-2`, `path-3` ... that nothing has."""
    number, free = 1, path
    while os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def inside(folder: Path, file: str) -> Path:
    """Where a file or folder of a run lies, there or not; links on the way, and whatever is no file, are refused."""
    path = folder
    for part in Path(file).parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISLNK(mode):
            raise InputError(_is_a_link(path))
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InputError(f"{path} is a device, pipe or socket; a run folder holds plain files only. Remove it")
    return path


def refuse_links(folder: Path) -> None:
    """Asks the same of everything in a run folder, before anything in it is believed or changed."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            inside(Path(place), name)


def without_links(path: str, flags: int) -> int:
    """An opener for `open`: a link is refused even if it came after `inside` had looked."""
    try:
        return open_no_link(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(_is_a_link(Path(path))) from None
        raise


def _is_a_link(path: Path) -> str:
    return (
        f"{path} is a symbolic link to {os.readlink(path)}, and nothing in a run folder is read or written through a "
        "link. If it is yours, put what it leads to in its place (is its disk mounted?); otherwise remove it"
    )


def free_space(folder: Path) -> str:
    try:
        return megabytes(shutil.disk_usage(folder).free)
    except OSError:
        return "an unknown number of bytes"


def megabytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:.0f} MB" if nbytes >= 2**20 else f"{nbytes / 2**10:.0f} kB"


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with JSON in each line; none if there is no file. A last line cut by a kill is left out."""
    try:
        lines = path.read_bytes().splitlines() if path.is_file() else []
    except OSError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise InputError(f"{path}:{number} is damaged: {error}") from None
    return rows


def is_whole_line(line: bytes) -> bool:
    """Of a file with JSON in each line: false for one that a kill cut."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
