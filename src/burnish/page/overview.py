"""All runs: stage, state, progress, outcome and the curve of their reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.page.library import Library
from burnish.page.view import Asked, Data, View

STAGES = ("", "ppo", "reward", "sft")
STATES = ("", "running", "finished", "stopped", "failed")
SORTS = {
    "newest": lambda row: -(row["changed"] or 0.0),
    "name": lambda row: row["run"],
    "reward": lambda row: -row["last"] if row["curve"] == "reward" and row["last"] is not None else float("inf"),
    "time left": lambda row: row["seconds_left"] if row["seconds_left"] is not None else float("inf"),
}
"""What runs can be sorted by; each puts first what one looks for."""
MOST_SHOWN = 500


def data(asked: Asked) -> Data:
    """Query: `text`, `stage`, `state`, `sort`."""
    library = asked.library
    rows = [library.summary(name) for name in library.runs()]
    wanted = {
        "text": asked.one("text")[:200],
        "stage": asked.choice("stage", STAGES),
        "state": asked.choice("state", STATES),
        "sort": asked.choice("sort", tuple(SORTS)),
    }
    chosen = sorted(filter(lambda row: _fits(row, wanted), rows), key=SORTS[wanted["sort"]])
    return {
        "folder": str(library.root),
        "runs": chosen[:MOST_SHOWN],
        "found": len(chosen),
        "total": len(rows),
        "states": {state: sum(row["state"] == state for row in rows) for state in STATES[1:]},
        "query": wanted,
    }


def all_runs(folder: str) -> Data:
    """The same for the command line: every run, newest first."""
    return data(Asked(Library(Path(folder)), {}, {}))


def _fits(row: dict[str, Any], wanted: dict[str, str]) -> bool:
    text = f"{row['run']} {row['outcome']} {row['why']}".lower()
    return all(word in text for word in wanted["text"].lower().split()) and all(
        wanted[key] in ("", row[key]) for key in ("stage", "state")
    )


VIEW = View("overview", "/", data, "Runs")
