"""The report: one HTML file that says what happened, shows the curves, and colours every token by its credit."""

from burnish.report.page import report_page

__all__ = ["report_page"]
