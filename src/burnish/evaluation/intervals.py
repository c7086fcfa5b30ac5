"""How sure a number is: 95 % intervals, and an exact test of who won more often."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from statistics import fmean, stdev

LEVEL = 0.05
Z = 1.96


def half_interval(values: Sequence[float]) -> float:
    """Half the width of Student's 95 % interval of a mean."""
    return student(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


@lru_cache(maxsize=256)
def student(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    angle = _crossing(lambda angle: _student_within(angle, freedom), 1 - LEVEL, math.pi / 2)
    return math.tan(angle) * math.sqrt(freedom)


def _student_within(angle: float, freedom: int) -> float:
    """P(|t| < tan(angle) * sqrt(freedom)) as a finite sum (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    cos2 = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= cos2 * k / (k + 1)
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def sign_test(wins: int, losses: int) -> float:
    """Two-sided p of an exact sign test: how often a fair coin would fall at least as unevenly."""
    total = wins + losses
    tail = sum(math.comb(total, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**total)


def exact_share_interval(count: int, total: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share. It excludes 1/2 exactly where the sign test has p < 0.05."""
    if total == 0:
        return 0.0, 1.0
    low = _crossing(lambda share: _at_least(count, total, share), LEVEL / 2) if count else 0.0
    high = 1 - _crossing(lambda rest: _at_least(total - count, total, rest), LEVEL / 2) if count < total else 1.0
    return low, high


def _at_least(count: int, total: int, share: float) -> float:
    """P(X >= count) of `total` draws that hit with probability `share`."""
    log_hit, log_miss = math.log(share), math.log1p(-share)
    log_all = math.lgamma(total + 1)
    return math.fsum(
        math.exp(log_all - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * log_hit + (total - k) * log_miss)
        for k in range(count, total + 1)
    )


def _crossing(rising: Callable[[float], float], level: float, high: float = 1.0) -> float:
    """Where between 0 and `high` a rising function reaches the level, by bisection."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < level else (low, middle)
    return (low + high) / 2


def by_group(values: Sequence[float], groups: Sequence[Hashable]) -> list[list[float]]:
    """The values of each group, in the order in which the groups first come."""
    found: dict[Hashable, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        found.setdefault(group, []).append(value)
    return list(found.values())


def share_interval(count: float, total: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it stays between 0 and 1 and holds for few cases too."""
    if total == 0:
        return 0.0, 1.0
    share, z2 = count / total, Z * Z
    centre = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_share_interval(hits: Sequence[float], groups: Sequence[Hashable]) -> tuple[float, float]:
    """Wilson's interval for cases that come in groups, such as pairs that share a prompt.

    Cases of one group tend to go the same way, so they say less than as many independent ones: how much less follows
    from how the groups' sums scatter.
    """
    total, share = len(hits), fmean(hits)
    sums = [sum(hit - share for hit in group) for group in by_group(hits, groups)]
    count = len(sums)
    if count == total:
        return share_interval(sum(hits), total)
    scatter = sum(s * s for s in sums) * count / max(count - 1, 1) / total**2  # the mean's variance
    # Without scatter between groups (or with one group), each group counts as a single observation.
    worth = min(total, max(share * (1 - share) / scatter, 1.0)) if count > 1 and scatter > 1e-12 else count
    return share_interval(share * worth, worth)


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's; 0 where one of them does not vary."""
    mean_a, mean_b = fmean(a), fmean(b)
    spread = math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))
    return sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True)) / spread if spread else 0.0


def correlation_interval(r: float, count: int) -> tuple[float, float]:
    """Fisher's 95 % interval of a correlation; `count` are independent cases."""
    if count <= 3:
        return -1.0, 1.0
    centre, half = math.atanh(max(min(r, 1 - 1e-12), -1 + 1e-12)), Z / math.sqrt(count - 3)
    return math.tanh(centre - half), math.tanh(centre + half)
