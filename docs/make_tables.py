"""Writes docs/config.md and docs/metrics.md from the code:  python docs/make_tables.py"""

from pathlib import Path

from burnish.config.documentation import config_page
from burnish.metrics import metrics_page

PAGES = {"config.md": config_page, "metrics.md": metrics_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(), encoding="utf-8")
