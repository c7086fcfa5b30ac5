"""KL to the reference, and rewards that are charged with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.errors import InputError
from burnish.maths import adapted_kl_coef, kl_adjusted_rewards, kl_per_token, overlong, whiten
from burnish.ppo.scores import LARGEST, as_scores, finite_number
from burnish.sa_pairs.table import Rows, SAPairs, as_sa_pairs


class KLDivergence:
    """Adds `kl`, the distance to the reference at each token: estimated from the sampled token (k1, k2, k3), or the
    exact KL of the two distributions there, which the generator has computed."""

    def __init__(self, estimator: str = "k1") -> None:
        self.estimator = estimator

    def add_kl_to_sa_pairs(self, sa_pairs: Rows) -> SAPairs:
        pairs = as_sa_pairs(sa_pairs)
        if self.estimator == "exact":
            return pairs.with_columns(kl=pairs["exact_kl"])
        return pairs.with_columns(kl=kl_per_token(pairs["logprob"], pairs["ref_logprob"], self.estimator))


class RewardAdjuster:
    """Adds `reward`: the price of the KL on every token, and the score, shaped for training."""

    def __init__(
        self, stop_token_penalty: float = 0.0, whiten_rewards: bool = False, shaping: RewardShaping | None = None
    ) -> None:
        self.stop_token_penalty = stop_token_penalty
        self.whiten_rewards = whiten_rewards
        self.shaping = shaping or RewardShaping()

    def adjust_rewards_with_kl(
        self,
        sa_pairs: Rows,
        rewards: Sequence[float] | Sequence[Sequence[float]],
        kl_coef: float,
        centre: Tensor | float = 0.0,
    ) -> SAPairs:
        """`rewards`: one score per response (it lands on the last token), or one list per response, one per token.

        `centre` is what scores count from: one number, or one for each response.
        """
        pairs = as_sa_pairs(sa_pairs)
        score = self.shaping(scores_as_tensor(rewards, pairs.mask), pairs.lengths, centre)
        reward = kl_adjusted_rewards(pairs["kl"], score, pairs.mask, kl_coef)
        if self.stop_token_penalty and pairs.finished is not None:
            penalty = self.stop_token_penalty * (~pairs.finished).float()  # [B]
            reward = reward + kl_adjusted_rewards(torch.zeros_like(reward), -penalty, pairs.mask, 0.0)
        if self.whiten_rewards:
            reward = whiten(reward, pairs.mask, keep_mean=True)
        return pairs.with_columns(reward=reward)


@dataclass(frozen=True)
class RewardShaping:
    """What training makes of scores; metrics and verdict show them as they are."""

    shape: str = "linear"
    clip: float | None = None
    overlong_tokens: int = 0
    overlong_penalty: float = 1.0
    longest: int = 0
    """max_new_tokens."""

    def __call__(self, score: Tensor, lengths: Tensor, centre: Tensor | float = 0.0) -> Tensor:
        """[B], or [B, T] for scores of tokens, which can only be taken as they are."""
        centred = isinstance(centre, Tensor) or centre != 0.0
        if score.dim() == 2:
            if centred or self.clip is not None or self.shape != "linear" or self.overlong_tokens:
                raise InputError(
                    "reward_against, reward_shape, reward_clip and overlong_tokens are for rewards with one score per "
                    "response; this one scores every token. Leave them out"
                )
            return score
        score = score - centre if centred else score
        if self.clip is not None:
            score = score.clamp(-self.clip, self.clip)
        if self.shape == "sigmoid":
            score = score.sigmoid()
        if self.overlong_tokens:
            score = score - self.overlong_penalty * overlong(lengths, self.longest, self.overlong_tokens)
        return score


def shaping_of(config: PPOConfig) -> RewardShaping:
    return RewardShaping(
        config.reward_shape, config.reward_clip, config.overlong_tokens, config.overlong_penalty, config.max_new_tokens
    )


class KLController:
    """Holds kl_coef. With a target it drifts until the measured KL per response meets it."""

    def __init__(self, kl_coef: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.kl_coef = kl_coef
        self.target = target
        self.horizon = horizon

    def update(self, kl_per_response: float, num_responses: int) -> None:
        if self.target is not None:
            self.kl_coef = adapted_kl_coef(self.kl_coef, kl_per_response, self.target, num_responses, self.horizon)


def scores_as_tensor(rewards: Sequence[Any], mask: Tensor) -> Tensor:
    """[B], or [B, T] if rewards are per token; a wrong number of them is refused.  mask [B, T]"""
    scores, lengths = as_scores(rewards), mask.sum(1).tolist()
    if len(scores) != len(lengths):
        raise InputError(f"{len(scores)} rewards for {len(lengths)} responses; a reward must give one for each")
    if not any(isinstance(score, list) for score in scores):
        return _within_bounds(torch.tensor(scores, dtype=torch.float64)).float().to(mask.device)
    padded = []
    for number, (score, length) in enumerate(zip(scores, lengths, strict=True)):
        if not isinstance(score, list) or len(score) != length:
            found = f"{len(score)} rewards" if isinstance(score, list) else f"{score!r}"
            raise InputError(f"response {number} has {length} tokens but {found}; per-token rewards need one each")
        padded.append(score + [0.0] * (mask.shape[1] - length))
    return _within_bounds(torch.tensor(padded, dtype=torch.float64)).float().to(mask.device)


def _within_bounds(score: Tensor) -> Tensor:
    """Weights may have made a sum of sound parts too large.  [B] or [B, T]"""
    wrong = ~(score.abs() <= LARGEST)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        finite_number(score[tuple(place)].item(), f"the reward of response {place[0]}")
    return score
