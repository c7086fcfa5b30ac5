"""Is this reward model any good? What its run measured on held-out pairs: accuracy, calibration, length, mistakes."""

from __future__ import annotations

from typing import Any

from burnish.errors import InputError
from burnish.page.view import Asked, Data, View

SCORES = ("num_scores", "score_correlation", "score_correlation_interval", "length_baseline")


def data(asked: Asked) -> Data:
    """Path: `run`."""
    name = asked.path["run"]
    run = asked.library.run(name)
    result = run.read("result.json") if run.has("result.json") else {}
    try:
        return asked.library.summary(name) | _shown(result)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"result.json of {run.name} is damaged") from None


def _shown(result: dict[str, Any]) -> Data:
    report = result.get("report") or {}
    return {
        "sentences": [result[key] for key in ("verdict", "verdict_on_scores") if result.get(key)],
        "num_pairs": report.get("num_pairs", 0),
        "accuracy": _accuracy(report) if report else [],
        "margin": report.get("margin"),
        "calibration_error": report.get("calibration_error"),
        "calibration": report.get("calibration", []),  # older versions kept the error alone
        "length_correlation": report.get("length_correlation"),
        "by_length": report.get("by_length", {}),
        "mistakes": report.get("mistakes", []),
        "human_scores": {key: result[key] for key in SCORES} if "score_correlation" in result else None,
    }


def _accuracy(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The model's, and that of what costs nothing."""
    longer = float(report["longer_wins"])
    return [
        {"name": "this reward model", "rate": report["accuracy"], "interval": report["accuracy_interval"]},
        {"name": "choosing the longer answer", "rate": longer, "interval": None},
        {"name": "choosing the shorter answer", "rate": 1 - longer, "interval": None},
        {"name": "a bag-of-words classifier", "rate": report["bag_of_words"], "interval": None},
    ]


VIEW = View("reward_model", "/reward/{run:path}", data, "Reward model", stages=("reward",))
