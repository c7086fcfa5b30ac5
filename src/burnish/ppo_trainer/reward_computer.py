"""Scores: asks the reward, and lets nothing into training that is not a finite number per response or token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from burnish.clock import Clock, timed
from burnish.errors import BurnishError, InputError
from burnish.models import RewardModel
from burnish.reward_kl import finite_number
from burnish.sa_pairs import SAPairs

RewardFunction = Callable[[list[str], list[str]], Sequence[Any]]
"""f(prompts, responses) -> one number per response, or one list of numbers (one per token) per response."""


class RewardComputer:
    """Scores responses with a Python function or a RewardModel."""

    def __init__(self, reward: RewardFunction | RewardModel, clock: Clock | None = None) -> None:
        self.reward = reward
        self.clock = clock or Clock()

    @property
    def name(self) -> str:
        return getattr(self.reward, "__name__", type(self.reward).__name__)

    @timed
    def compute_rewards(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> list[Any]:
        """One reward per response. A RewardModel reads the generated tokens themselves, if their SA pairs are given."""
        if len(prompts) != len(generated_texts):
            raise InputError(f"{len(prompts)} prompts but {len(generated_texts)} responses; rewards need one for each")
        rewards = self._ask(prompts, generated_texts, sa_pairs)
        if isinstance(rewards, str) or not hasattr(rewards, "__len__") or not hasattr(rewards, "__getitem__"):
            raise InputError(f"reward {self.name} returned {rewards!r:.60}; it must return a list, one per response")
        if len(rewards) != len(prompts):
            raise InputError(
                f"reward {self.name} returned {len(rewards)} values for {len(prompts)} responses; it needs one each"
            )
        return [self._checked(reward, number) for number, reward in enumerate(rewards)]

    def _ask(self, prompts: Sequence[str], texts: Sequence[str], sa_pairs: SAPairs | None) -> Any:
        if isinstance(self.reward, RewardModel):
            if sa_pairs is not None:
                return self.reward.score_pairs(sa_pairs)
            return self.reward.compute_rewards(prompts, texts)
        try:
            return self.reward(list(prompts), list(texts))
        except BurnishError:
            raise
        except Exception as error:
            raise InputError(f"reward {self.name} failed with {type(error).__name__}: {error}") from error

    def _checked(self, reward: Any, number: int) -> Any:
        what = f"reward {self.name}, response {number}"
        if hasattr(reward, "__len__") and not isinstance(reward, str):
            return [finite_number(value, f"{what}, token {t}") for t, value in enumerate(reward)]
        return finite_number(reward, what)
