"""How sure a number is: 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import fmean, stdev

Z = 1.96


def half_interval(values: Sequence[float]) -> float:
    """Half the width of Student's 95 % interval of a mean."""
    return student(len(values) - 1) * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t: its expansion around the normal one, good to 1 % from two degrees on."""
    z, n = Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


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
    sums: dict[Hashable, float] = {}
    for hit, group in zip(hits, groups, strict=True):
        sums[group] = sums.get(group, 0.0) + hit - share
    count = len(sums)
    if count == total:
        return share_interval(sum(hits), total)
    scatter = sum(s * s for s in sums.values()) * count / max(count - 1, 1) / total**2  # the mean's variance
    # Where the groups' sums do not scatter at all, or there is one group, they are not known to say more than they are.
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
