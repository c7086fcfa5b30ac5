"""What a judge said, as a number from 0 to 1: a grade on a scale, a letter, or what it might have said instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from burnish.errors import RewardFailedError

LEAST_MASS = 0.5  # of the first token's probability that grades must have


def grade_in(text: str, lowest: int, highest: int) -> float:
    """The last number of an answer, as a share of the scale; of 7/10 and of 7 out of 10 the 7."""
    found = re.findall(r"(-?\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*\d+(?:\.\d+)?)?", text)
    if not found or not lowest <= float(found[-1]) <= highest:
        raise RewardFailedError(f"the judge answered {text[-80:]!r}, without a grade from {lowest} to {highest}")
    return (float(found[-1]) - lowest) / (highest - lowest)


def letter_in(text: str) -> float:
    """1 for A, 0 for B: the one that stands in the answer's last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    letters = set(re.findall(r"\b[AB]\b", lines[-1])) if lines else set()
    if len(letters) != 1:
        raise RewardFailedError(f"the judge answered {text[-80:]!r}, which is neither A nor B")
    return float(letters == {"A"})


def expected_worth(seen: Sequence[tuple[str, float]], worth: Mapping[str, float]) -> float:
    """The mean worth of what may come first, by probability."""
    mass = sum(p for token, p in seen if token in worth)
    if not mass >= LEAST_MASS:
        likely = max(seen, key=lambda one: one[1])[0] if seen else ""
        raise RewardFailedError(
            f"the judge begins its answer with one of {', '.join(worth)} in only {mass:.0%} of cases, and most likely "
            f"with {likely!r:.40}"
        )
    return sum(p * worth[token] for token, p in seen if token in worth) / mass
