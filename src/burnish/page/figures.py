"""Curves as JSON has them: points, unit, meaning, healthy range, and what is told when it is left."""

from __future__ import annotations

from typing import Any

from burnish.drawing.charts import COLUMNS, thinned
from burnish.drawing.health import LOOKED_AT, alarm_of, band_of
from burnish.page.growing import Metrics
from burnish.ppo.meanings import METRICS, Metric

MEANINGS = METRICS | {
    "loss": Metric("Mean loss of the update's batch.", "falls, with noise", "-"),
    "accuracy": Metric("Share of the batch's pairs in which the chosen answer scores higher.", "rises above 0.5", "-"),
    "margin": Metric("How much higher the chosen answers score, on average.", "rises above 0", "-"),
    "grad_norm": Metric("Gradient norm before clipping.", "steady", "jumps by 10x: an unstable update"),
}
UNKNOWN = Metric("", "-", "-")


def figure(metrics: Metrics, name: str, title: str, unit: str) -> dict[str, Any] | None:
    """One metric, with the parts of the reward beside the reward; None where it was never logged."""
    points = metrics.series(name)
    if not points:
        return None
    lines = [{"name": title.lower(), "points": thinned(points, COLUMNS)}]
    if name == "reward":
        parts = [key for key in metrics.columns if key.startswith("reward_parts/")]
        if len(parts) > 1:
            lines += [
                {"name": key.partition("/")[2], "points": thinned(own, COLUMNS)}
                for key in parts
                if (own := metrics.series(key))
            ]
    return described(name, title, unit) | {"lines": lines, "alarm": _alarm(name, points[-LOOKED_AT:])}


def described(name: str, title: str, unit: str) -> dict[str, Any]:
    known = MEANINGS.get(name, UNKNOWN)
    texts = {"meaning": known.meaning, "healthy": known.healthy, "red_flag": known.red_flag}
    return {"metric": name, "title": title, "unit": unit, "band": band_of(name), **texts}


def other_numbers(metrics: Metrics, drawn: set[str]) -> list[dict[str, Any]]:
    """The last value of whatever is logged and not drawn, and its alarm."""
    rows = []
    for name in metrics.columns:
        if name in drawn or name in ("step", "update") or name.startswith("seconds_"):
            continue
        points = metrics.series(name, LOOKED_AT)
        if not points:
            continue
        meaning = MEANINGS.get(name.partition("/")[0], UNKNOWN).meaning
        rows.append({"metric": name, "value": points[-1][1], "meaning": meaning, "alarm": _alarm(name, points)})
    return rows


def _alarm(name: str, points: list[tuple[float, float]]) -> str | None:
    return alarm_of(name, [step for step, _ in points], [value for _, value in points])
