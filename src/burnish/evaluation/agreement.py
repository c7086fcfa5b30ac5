"""How far judges agree: with themselves when they are asked again, with each other, and with the reward's scores.

A voice is 1, -1 or 0 (a tie) for one pair of answers, whatever side it stood on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from burnish.evaluation.intervals import share_interval

Voices = Mapping[str, int]
"""By pair."""


def share(hits: Sequence[bool]) -> dict[str, Any]:
    """Of how many, which share, and its 95 % interval."""
    count = len(hits)
    rate = sum(hits) / count if count else None
    return {"count": count, "rate": rate, "interval": share_interval(sum(hits), count) if count else None}


def with_oneself(first: Voices, again: Voices) -> dict[str, Any]:
    return share([first[pair] == voice for pair, voice in again.items() if pair in first])


def with_scores(voices: Voices, margins: Mapping[str, float]) -> dict[str, Any]:
    """Where the judge and the scores both prefer one of the two: whether it is the same."""
    both = [(voice, margins[pair]) for pair, voice in voices.items() if voice and margins.get(pair)]
    return share([(voice > 0) == (margin > 0) for voice, margin in both])


def between(judges: Mapping[str, Voices]) -> list[dict[str, Any]]:
    """For every two judges who saw the same pairs: the share on which they agree, and Cohen's kappa, which is 0 where
    they agree no more often than chance would have it.
    """
    found = []
    for one, other in combinations(judges, 2):
        seen = [pair for pair in judges[one] if pair in judges[other]]
        if seen:
            a, b = ([judges[own][pair] for pair in seen] for own in (one, other))
            same = share([x == y for x, y in zip(a, b, strict=True)])
            found.append({"judges": [one, other], "kappa": kappa(a, b)} | same)
    return found


def kappa(a: Sequence[int], b: Sequence[int]) -> float | None:
    """(agreement - chance) / (1 - chance); None where both always say the same one thing."""
    total = len(a)
    agreed = sum(x == y for x, y in zip(a, b, strict=True)) / total
    ours, theirs = Counter(a), Counter(b)
    chance = sum(ours[voice] * theirs[voice] for voice in ours) / total**2
    return (agreed - chance) / (1 - chance) if chance < 1 else None
