"""How far the colours of tokens may be trusted, in a sentence."""

from __future__ import annotations

from statistics import median
from typing import Any

CREDITED = {"value": "values", "td_error": "TD errors", "advantage": "advantages"}
"""Columns of the SA pairs whose truth can be measured."""
NOISE, HINT = 0.1, 0.4  # correlations: below the first credit is noise, below the second a hint


def credit_sentence(credit: dict[str, Any]) -> str:
    """Of a measurement (credit.json)."""
    agreements = credit["agreements"]
    found = [_agreement(CREDITED[column], agreements[column]) for column in CREDITED if column in agreements]
    measured = f"(measured on {credit['responses']} held-out responses, {credit['continuations']} continuations each)"
    said = f"Credit against what continuations really earned, as correlations: {'; '.join(found)} {measured}."
    return f"{said} {_foreseeable(credit['foreseeable'])}" if "foreseeable" in credit else said


def _foreseeable(share: dict[str, float]) -> str:
    """Of a measurement made since there is one."""
    known, low, high = share["share"], share["low"], share["high"]
    return (
        f"Of the returns' variance {known:.0%} ({low:.0%} to {high:.0%}) is decided by what was said before: more than "
        "that no value model could explain."
    )


def _agreement(name: str, agreement: dict[str, Any]) -> str:
    r, low, high = agreement["correlation"], agreement["low"], agreement["high"]
    if low <= 0 or r < NOISE:
        judged = "not to be told from noise"
    else:
        judged = "a hint, no more" if r < HINT else "to be trusted on the whole"
    return f"{name} {r:.2f} ({low:.2f} to {high:.2f}), {judged}"


def unmeasured_sentence(rows: list[dict[str, Any]], folder: str) -> str:
    """Where nobody has measured it: from what the value model explained in the last third of the steps."""
    explained = [row["explained_variance"] for row in rows if "explained_variance" in row]
    if not explained:
        return (
            "There is no value model: a token is credited with what its response earned, so advantages tell responses "
            "apart, not tokens."
        )
    share = median(explained[-max(1, len(explained) // 3) :])
    measure = f"`burnish credit {folder}` measures how far to trust them."
    if share < NOISE:
        return (
            f"The value model explains next to nothing of the returns (explained variance {share:.2f}), so the colours "
            f"by advantage and TD error are mostly noise. {measure}"
        )
    return f"The value model explains {share:.0%} of the returns' variance. {measure}"
