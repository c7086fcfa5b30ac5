"""Healthy ranges of a run's curves, and what it means when one is left: cause and remedy."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any

LOOKED_AT = 5  # steps: a single one is mostly noise


@dataclass(frozen=True)
class Range:
    """Where a metric should be. Outside by a little is common; beyond `alarm` it is told."""

    healthy: tuple[float, float] | None
    """Drawn as a band."""
    alarm: tuple[float, float]
    below: str = ""
    """Cause and remedy when it has fallen below."""
    above: str = ""
    from_step: int = LOOKED_AT
    """Before it nothing is told: it has to settle first."""


RANGES: dict[str, Range] = {
    "kl": Range(
        (0.0, 15.0),
        (0.0, 20.0),
        above="The text is leaving the reference, and the reward may be won by tricks. Look at the rollouts; raise "
        "kl_coef, set adaptive_kl_target, or lower learning_rate.",
    ),
    "clip_fraction": Range(
        (0.02, 0.3),
        (0.0, 0.5),
        above="Most tokens reach the clip: each step changes the policy more than PPO can follow. Lower learning_rate "
        "or epochs.",
    ),
    "explained_variance": Range(
        (0.3, 0.9),
        (0.0, 2.0),
        below="The value model predicts worse than a constant would, so the credit of tokens misleads. Use "
        "value_warmup_steps, a higher value_learning_rate, or a recipe without a value model (rloo).",
        from_step=10,
    ),
    "approx_kl": Range(
        (0.001, 0.05),
        (0.0, 0.1),
        above="The updates of a step move the policy too far. Lower learning_rate or epochs, or set target_kl_stop.",
    ),
    "entropy": Range(
        None,
        (0.05, float("inf")),
        below="The policy nearly always says the same thing. Raise kl_coef, lower learning_rate, or set entropy_coef.",
    ),
    "reward_std": Range(
        None,
        (1e-6, float("inf")),
        below="All responses earn the same, so there is nothing to tell apart. Look at the reward with `burnish "
        "reward-test`, or choose other prompts.",
    ),
    "flat_groups": Range(
        None,
        (0.0, 0.9),
        above="For nearly every prompt all responses earn the same: the prompts are too easy or too hard, or the "
        "reward hardly differs between answers. Choose other prompts or a finer reward.",
    ),
    "finished": Range(
        None,
        (0.05, 2.0),
        below="Hardly any response comes to its end. Raise max_new_tokens, or reward brevity.",
    ),
    "left_out": Range(
        None,
        (0.0, 0.5),
        above="The reward could not score some responses; they are not trained on. Read the warnings, and try the "
        "reward with `burnish reward-test`.",
        from_step=1,
    ),
    "ratio": Range(
        None,
        (0.8, 1.2),
        below="Updates make the sampled tokens much less likely: they are unstable. Lower learning_rate.",
        above="Updates make the sampled tokens much more likely: they are unstable. Lower learning_rate.",
    ),
}


def band_of(metric: str) -> tuple[float, float] | None:
    """Its healthy range, where there is one in numbers."""
    return RANGES[metric].healthy if metric in RANGES else None


def alarm_of(metric: str, steps: list[float], values: list[float]) -> str | None:
    """Cause and remedy, where the median of a metric's last steps lies outside; None where all is well."""
    known = RANGES.get(metric)
    if known is None or not steps or steps[-1] < known.from_step:
        return None
    now = median(values[-LOOKED_AT:])
    low, high = known.alarm
    return (known.below or None) if now < low else (known.above or None) if now > high else None


def alarms(columns: dict[str, tuple[list[float], list[float]]]) -> list[dict[str, Any]]:
    """All that are outside: metric, its last value, cause and remedy. `columns` has steps and values of each metric."""
    return [
        {"metric": metric, "value": columns[metric][1][-1], "told": told}
        for metric in RANGES
        if metric in columns and (told := alarm_of(metric, *columns[metric]))
    ]
