"""Two sides on the same prompts: how often one is better, by how much, and whether that is clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from burnish.evaluation.intervals import LEVEL, exact_share_interval, half_interval, sign_test

MIN_DECIDED = 6  # five signs cannot be clear: all alike they still have p = 2 / 2^5 = 0.06
ENOUGH = 30  # so many decided prompts show a model that wins three of four in 80 cases of 100
SMALL_GAIN = 0.2  # of the rewards' spread: what is usually called a small effect


@dataclass(frozen=True)
class PairedComparison:
    """Tuned against start, prompt by prompt: how often it is better, and by how much.

    A side is clearly better if a sign test over the decided prompts or Student's interval of the mean change says so,
    and the other of the two does not say the opposite. Where nothing has changed, each of them errs in favour of the
    tuned side in about 2.5 of 100 runs, so both together in at most about 5.
    """

    wins: int
    ties: int
    losses: int
    means: tuple[float, float]
    """Of start and tuned."""
    half_change: float
    """Half the width of the 95 % interval of the mean change."""
    spread: float
    """Standard deviation of the values of both sides."""
    sizes_vary: bool
    """False where every change is of one size (people's choices, right or wrong): then only signs can be tested."""

    @property
    def num_prompts(self) -> int:
        return self.wins + self.ties + self.losses

    @property
    def decided(self) -> int:
        """Prompts that are no ties."""
        return self.wins + self.losses

    @property
    def rate(self) -> float:
        """Share of the decided prompts that tuned won; a half where none is decided."""
        return self.wins / self.decided if self.decided else 0.5

    @property
    def interval(self) -> tuple[float, float]:
        """Of the rate, 95 %."""
        return exact_share_interval(self.wins, self.decided)

    @property
    def change(self) -> float:
        return self.means[1] - self.means[0]

    @property
    def by_count(self) -> int:
        """The side that clearly wins more often: 1 is tuned, -1 is start, 0 is neither."""
        return _sign(self.wins - self.losses) if sign_test(self.wins, self.losses) < LEVEL else 0

    @property
    def by_size(self) -> int:
        """The side whose mean is clearly higher. A few numbers do not show how they scatter, so they do not count."""
        clear = self.sizes_vary and self.decided >= MIN_DECIDED and abs(self.change) > self.half_change
        return _sign(self.change) if clear else 0

    @property
    def prefers_tuned(self) -> bool:
        return self.by_count + self.by_size > 0

    @property
    def prefers_start(self) -> bool:
        return self.by_count + self.by_size < 0

    @property
    def at_odds(self) -> bool:
        """Clearly more often better, but clearly worse on average; or the other way round."""
        return self.by_count * self.by_size < 0

    @property
    def leans_to_start(self) -> bool:
        return self.rate < 0.4 and self.change < 0

    @property
    def no_gain(self) -> bool:
        """Enough prompts to say: if there is a gain at all, it is a small one."""
        return self.num_prompts >= ENOUGH and self.change + self.half_change < SMALL_GAIN * self.spread

    @property
    def tally(self) -> str:
        """In plain numbers."""
        ties = f", equal on {self.ties}" if self.ties else ""
        return f"better on {self.wins}, worse on {self.losses}{ties} of {self.num_prompts} prompts"

    @property
    def share(self) -> str:
        low, high = self.interval
        return f"{low:.0%} to {high:.0%} of the decided ones"

    def __str__(self) -> str:
        by = f" ({self.change:+z.2f} ± {self.half_change:.2f})" if math.isfinite(self.half_change) else ""
        return f"{self.means[0]:z.2f} to {self.means[1]:z.2f}{by}, {self.tally}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "interval": list(self.interval),
            "num_prompts": self.num_prompts,
            "wins": self.wins,
            "ties": self.ties,
            "losses": self.losses,
            "p_value": sign_test(self.wins, self.losses),
            "change": self.change,
            "half_change_95": self.half_change if math.isfinite(self.half_change) else None,
        }


def compare(start: Sequence[float], tuned: Sequence[float]) -> PairedComparison:
    """By two values for each different prompt."""
    tiny = 1e-9 * max(map(abs, [*start, *tuned]))  # what rounding leaves of a mean is no difference
    changes = [t - s if abs(t - s) > tiny else 0.0 for s, t in zip(start, tuned, strict=True)]
    sizes = [abs(c) for c in changes if c]
    return PairedComparison(
        wins=sum(c > 0 for c in changes),
        ties=sum(c == 0 for c in changes),
        losses=sum(c < 0 for c in changes),
        means=(fmean(start), fmean(tuned)),
        half_change=half_interval(changes),
        spread=stdev([*start, *tuned]),
        sizes_vary=bool(sizes) and max(sizes) - min(sizes) > tiny,
    )


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
