"""Runs beside each other: curves over each other, what differed in the settings, what came out."""

from __future__ import annotations

from typing import Any

from burnish.drawing.charts import COLUMNS, thinned
from burnish.drawing.curves import titles_of
from burnish.page.figures import described
from burnish.page.view import Asked, Data, View

MOST_RUNS = 6  # as many as there are kinds of line
NAMES_ONLY = ("run_dir", "run_name")


def data(asked: Asked) -> Data:
    """Query: `run`, once for each."""
    names = list(dict.fromkeys(asked.query.get("run", [])))[:MOST_RUNS]
    library = asked.library
    summaries = [library.summary(name) for name in names]
    stages = {row["stage"] for row in summaries}
    titles = titles_of(stages.pop() if len(stages) == 1 else "ppo")
    return {
        "runs": summaries,
        "others": [name for name in library.runs() if name not in names],
        "room_left": MOST_RUNS - len(names),
        "charts": [drawn for key, title in titles.items() if (drawn := _figure(asked, names, key, *title))],
        "settings": _differences([library.settings(name) for name in names]),
        "results": _results(asked, summaries),
    }


def _figure(asked: Asked, names: list[str], key: str, title: str, unit: str) -> dict[str, Any] | None:
    """A line for each run; empty for one that did not log this."""
    series = {name: asked.library.metrics(name).series(key) for name in names}
    if not any(series.values()):
        return None
    lines = [{"name": name, "points": thinned(points, COLUMNS)} for name, points in series.items()]
    return described(key, title, unit) | {"lines": lines, "alarm": None}


def _differences(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keys that do not have the same value in all runs."""
    rows = []
    for key in dict.fromkeys(key for own in settings for key in own):
        values = [own.get(key) for own in settings]
        if key not in NAMES_ONLY and any(value != values[0] for value in values):
            rows.append({"key": key, "values": values})
    return rows


def _results(asked: Asked, summaries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Held-out means, where there is a verdict, and the last step's numbers."""
    columns: list[dict[str, float]] = []
    for row in summaries:
        run, metrics = asked.library.run(row["run"]), asked.library.metrics(row["run"])
        own = {f"last {key}": value for key in titles_of(row["stage"]) if (value := metrics.last(key)) is not None}
        if run.has("verdict.json"):
            tuned = run.read("verdict.json")["tuned"]
            own = {f"held-out {key}": v["mean"] for key, v in tuned.items() if isinstance(v, dict)} | own
        columns.append(own)
    keys = dict.fromkeys(key for own in columns for key in own)
    return [{"key": key, "values": [own.get(key) for own in columns]} for key in keys]


VIEW = View("compare", "/compare", data, "Compare")
