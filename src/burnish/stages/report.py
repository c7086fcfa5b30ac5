"""The report stage: a run folder in, one HTML file out."""

from __future__ import annotations

from pathlib import Path

from burnish.report import report_page
from burnish.runs import Run


def write_report(run: Run, target: str | Path | None = None) -> Path:
    """Writes the page beside the run's other files, or where it is wanted."""
    page = Path(target) if target else run.folder / "report.html"
    page.write_text(report_page(run), encoding="utf-8")
    return page
