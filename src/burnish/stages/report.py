"""The report stage: a run folder in, one HTML file out."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from burnish.errors import InputError, is_disk_full
from burnish.runs.disk import write_whole
from burnish.runs.run import Run
from burnish.show.page import report_page


def write_report(run: Run, target: str | Path | None = None) -> Path:
    """Writes the page beside the run's other files, or where it is wanted."""
    page = Path(target) if target else run.path("report.html")
    text = report_page(run)
    try:
        _write(page, text)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(f"cannot write {page}: {error.strerror or error}") from None
    return page


def _write(page: Path, text: str) -> None:
    """A file is replaced as a whole, and by a link of the user's own it is the link's target that is; a terminal, a
    pipe or /dev/null is written to and stays what it is.
    """
    mode = page.stat().st_mode if page.exists() else stat.S_IFREG
    if stat.S_ISREG(mode):
        write_whole(Path(os.path.realpath(page)), text)
    elif stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        with page.open("w", encoding="utf-8") as out:
            out.write(text)
    else:
        kind = "folder" if stat.S_ISDIR(mode) else "device" if stat.S_ISBLK(mode) else "socket"
        raise InputError(f"{page} is a {kind}; name a file to write the report to, such as report.html")
