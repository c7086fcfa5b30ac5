"""Scores: asks the reward, and lets nothing into training that is not a finite number per response or token."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from burnish.clock import Clock, timed
from burnish.errors import BurnishError, InputError
from burnish.models import RewardModel
from burnish.reward_kl import finite_number
from burnish.sa_pairs import SAPairs

RewardFunction = Callable[..., Sequence[Any]]
"""f(prompts, responses) -> one number per response. A function with a third parameter `tokens` also gets the tokens of
each response as text (the stop token included), and may return one list of numbers per response, one for each token."""


@dataclass(frozen=True)
class WeightedReward:
    """One part of a reward, and what its score is multiplied with."""

    name: str
    reward: RewardFunction | RewardModel
    weight: float = 1.0


class RewardComputer:
    """Scores responses with a Python function, a RewardModel, or a weighted sum of several."""

    def __init__(
        self,
        reward: RewardFunction | RewardModel | Sequence[WeightedReward],
        tokenizer: Any = None,
        clock: Clock | None = None,
    ) -> None:
        single = isinstance(reward, RewardModel) or callable(reward)
        self.parts = [WeightedReward(_name_of(reward), reward)] if single else list(reward)  # type: ignore[arg-type]
        self.tokenizer = tokenizer
        self.clock = clock or Clock()
        self.part_means: dict[str, float] = {}
        """Mean score of each part over the last responses, before its weight."""

    @property
    def name(self) -> str:
        if len(self.parts) == 1 and self.parts[0].weight == 1:
            return self.parts[0].name
        return " + ".join(f"{p.weight:g} {p.name}" for p in self.parts)

    @property
    def models(self) -> list[RewardModel]:
        return [p.reward for p in self.parts if isinstance(p.reward, RewardModel)]

    @timed
    def compute_rewards(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> list[Any]:
        """One reward per response. `sa_pairs` are the responses' own, for rewards that look at tokens."""
        by_part = self.compute_parts(prompts, generated_texts, sa_pairs)
        self.part_means = {n: fmean(map(_total, scores)) for n, scores in by_part.items()} if prompts else {}
        if len(self.parts) == 1 and self.parts[0].weight == 1:
            return next(iter(by_part.values()))
        weights = [p.weight for p in self.parts]
        return [_weighted_sum(weights, scores) for scores in zip(*by_part.values(), strict=True)]

    def compute_parts(
        self, prompts: Sequence[str], generated_texts: Sequence[str], sa_pairs: SAPairs | None = None
    ) -> dict[str, list[Any]]:
        """What each part says of each response, before its weight."""
        if len(prompts) != len(generated_texts):
            raise InputError(f"{len(prompts)} prompts but {len(generated_texts)} responses; rewards need one for each")
        return {p.name: self._checked_scores(p, list(prompts), list(generated_texts), sa_pairs) for p in self.parts}

    def _checked_scores(
        self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None
    ) -> list[Any]:
        rewards = self._ask(part, prompts, texts, sa_pairs)
        rewards = rewards.tolist() if hasattr(rewards, "tolist") else rewards  # a tensor or an array
        if isinstance(rewards, str) or not isinstance(rewards, Sequence):
            raise InputError(f"reward {part.name} returned {rewards!r:.60}; it must return a list, one per response")
        if len(rewards) != len(prompts):
            raise InputError(
                f"reward {part.name} returned {len(rewards)} values for {len(prompts)} responses; it needs one each"
            )
        return [_checked(reward, f"reward {part.name}, response {n}") for n, reward in enumerate(rewards)]

    def _ask(self, part: WeightedReward, prompts: list[str], texts: list[str], sa_pairs: SAPairs | None) -> Any:
        reward = part.reward
        if isinstance(reward, RewardModel):
            if sa_pairs is not None:
                return reward.score_pairs(sa_pairs)
            return reward.compute_rewards(prompts, texts)
        try:
            if "tokens" in inspect.signature(reward).parameters:
                return reward(prompts, texts, self._tokens(texts, sa_pairs))
            return reward(prompts, texts)
        except BurnishError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise InputError(f"reward {part.name} failed with {type(error).__name__}: {error} ({where})") from error

    def _tokens(self, texts: list[str], sa_pairs: SAPairs | None) -> list[list[str]]:
        """The tokens of each response as text: those generated, or, for text from elsewhere, the tokenizer's."""
        if sa_pairs is not None:
            ids = [action[mask].tolist() for action, mask in zip(sa_pairs["action"], sa_pairs.mask, strict=True)]
        elif self.tokenizer is not None:
            ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        else:
            return [text.split() for text in texts]
        return [[self.tokenizer.decode([i]) for i in response] for response in ids]


def _name_of(reward: Any) -> str:
    return getattr(reward, "__name__", type(reward).__name__)


def _checked(reward: Any, what: str) -> Any:
    reward = reward.tolist() if hasattr(reward, "tolist") else reward
    if isinstance(reward, Sequence) and not isinstance(reward, str):
        return [finite_number(value, f"{what}, token {t}") for t, value in enumerate(reward)]
    return finite_number(reward, what)


def _total(score: Any) -> float:
    return sum(score) if isinstance(score, list) else score


def _weighted_sum(weights: Sequence[float], scores: Sequence[Any]) -> Any:
    """One number; or, if a part scores token by token, one per token, and the other parts on the last."""
    per_token = [(w, s) for w, s in zip(weights, scores, strict=True) if isinstance(s, list)]
    whole = sum(w * s for w, s in zip(weights, scores, strict=True) if not isinstance(s, list))
    if not per_token:
        return whole
    columns = zip(*(s for _, s in per_token), strict=True)
    tokens = [sum(w * v for (w, _), v in zip(per_token, column, strict=True)) for column in columns]
    tokens[-1] += whole
    return tokens
