"""The report stage: a run folder in, one HTML file out."""

from __future__ import annotations

from pathlib import Path

from burnish.disk import write_whole
from burnish.errors import InputError, is_disk_full
from burnish.report import report_page
from burnish.runs import Run
from burnish.safe_text import without_secrets


def write_report(run: Run, target: str | Path | None = None) -> Path:
    """Writes the page beside the run's other files, or where it is wanted."""
    page = Path(target) if target else run.folder / "report.html"
    text = without_secrets(report_page(run))
    try:
        write_whole(page, text)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise InputError(f"cannot write {page}: {error.strerror or error}") from None
    return page
