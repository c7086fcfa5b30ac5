"""Rewards as numbers that training may use: checked once, where they come in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from burnish.errors import InputError

LARGEST = 1e15  # of a reward: its square is summed over a batch in float32


class Scores(list[Any]):
    """One reward per response, all checked: a number, or a list with one for each token; None where there is none."""

    def __init__(
        self,
        rewards: Iterable[Any],
        part_means: dict[str, float] | None = None,
        parts: dict[str, list[float | None]] | None = None,
    ) -> None:
        super().__init__(rewards)
        self.part_means = part_means or {}
        """Mean score of each part of the reward, before its weight."""
        self.parts = parts or {}
        """What each part says of each response, before its weight."""
        self.num_left_out = self.count(None)

    def at(self, places: Sequence[int]) -> Scores:
        """Those of some responses. How many were left out of the step stays known."""
        parts = {name: [own[n] for n in places] for name, own in self.parts.items()}
        chosen = Scores([self[n] for n in places], self.part_means, parts)
        chosen.num_left_out = self.num_left_out
        return chosen

    @property
    def totals(self) -> list[float]:
        """One number per response: per-token rewards are summed."""
        return [total(reward) for reward in self]


def total(reward: Any) -> Any:
    """One number: per-token rewards are summed."""
    return sum(reward) if isinstance(reward, list) else reward


def as_scores(rewards: Sequence[Any]) -> Scores:
    """Rewards from anywhere (tensors, arrays, lists); a number that is not finite is refused, by response."""
    if isinstance(rewards, Scores):
        return rewards
    given = [r.tolist() if hasattr(r, "tolist") else r for r in rewards]
    return Scores(finite_score(reward, f"the reward of response {number}") for number, reward in enumerate(given))


def finite_score(reward: Any, what: str) -> Any:
    """A number, or a list of them; anything that is not finite is refused under the name `what`."""
    reward = reward.tolist() if hasattr(reward, "tolist") else reward
    if not isinstance(reward, Sequence) or isinstance(reward, str):
        return finite_number(reward, what)
    if not reward:
        raise InputError(f"{what} is an empty list; it needs a number, or one for each token")
    return [finite_number(value, f"{what}, token {t}") for t, value in enumerate(reward)]


def finite_number(value: Any, what: str) -> float:
    """The value as a float; anything that is not a finite number is refused under the name `what`."""
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise InputError(f"{what} is {value!r:.60}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{what} is {number}; a reward must be finite")
    if abs(number) > LARGEST:
        raise InputError(f"{what} is {number:g}; a reward must stay below {LARGEST:g} (about 1 learns best)")
    return number
