"""Which curves are drawn of a run, and how they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from burnish.drawing.charts import Chart, Line, series
from burnish.drawing.health import band_of

CHARTS: dict[str, tuple[str, str]] = {
    "reward": ("Reward", "score"),
    "kl": ("KL to the reference", "nats per response"),
    "entropy": ("Entropy", "nats per token"),
    "response_tokens": ("Response length", "tokens"),
    "clip_fraction": ("Clip fraction", "share of tokens"),
    "explained_variance": ("Explained variance", "share"),
    "group_explained": ("Explained by the prompt's other responses", "share"),
    "approx_kl": ("Size of the update", "nats per token"),
    "policy_loss": ("Policy loss", ""),
    "value_loss": ("Value loss", ""),
    "learning_rate": ("Learning rate", ""),
    "seconds": ("Seconds per step", "s"),
}
"""Metric, title and unit."""
SUPERVISED = {
    "loss": ("Loss", "nats"),
    "accuracy": ("Accuracy", "share of the batch's pairs"),
    "margin": ("Margin", "score"),
    "grad_norm": ("Gradient norm", ""),
    "learning_rate": ("Learning rate", ""),
}
"""The same for SFT and reward models."""
Texts = tuple[str, str, str]


def titles_of(stage: str | None) -> dict[str, tuple[str, str]]:
    """Title and unit of what is drawn of a stage's runs."""
    return CHARTS if stage == "ppo" else SUPERVISED


def charts_of(
    rows: list[dict[str, Any]], stage: str = "ppo", told: Callable[[str], Texts] = lambda metric: ("", "-", "-")
) -> list[Chart]:
    """Of the lines of metrics.jsonl; `told` gives a metric's meaning, what is healthy and what is a red flag."""
    rows = [{"step": row.get("update")} | row for row in rows]
    charts = []
    for key, (title, _) in titles_of(stage).items():
        line = series(rows, key, title.lower())
        if line is not None:
            lines = [line, *(_reward_parts(rows) if key == "reward" else [])]
            charts.append(Chart(title, *told(key), lines, band_of(key)))
    return charts


def _reward_parts(rows: list[dict[str, Any]]) -> list[Line]:
    """The components, where there is more than one."""
    names = list(dict.fromkeys(name for r in rows for name in r.get("reward_parts") or {}))
    if len(names) < 2:
        return []
    lines = (series([{"step": r["step"]} | (r.get("reward_parts") or {}) for r in rows], name) for name in names)
    return [line for line in lines if line is not None]
