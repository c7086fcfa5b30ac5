"""KL to the reference, and rewards that are charged with it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnish.maths import adapted_kl_coef, kl_adjusted_rewards, kl_per_token, whiten
from burnish.ppo.scores import scores_as_tensor
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
    """Adds `reward`: the price of the KL on every token, and the score."""

    def __init__(self, stop_token_penalty: float = 0.0, whiten_rewards: bool = False) -> None:
        self.stop_token_penalty = stop_token_penalty
        self.whiten_rewards = whiten_rewards

    def adjust_rewards_with_kl(
        self, sa_pairs: Rows, rewards: Sequence[float] | Sequence[Sequence[float]], kl_coef: float
    ) -> SAPairs:
        """`rewards`: one score per response (it lands on the last token), or one list per response, one per token."""
        pairs = as_sa_pairs(sa_pairs)
        score = scores_as_tensor(rewards, pairs.mask)
        reward = kl_adjusted_rewards(pairs["kl"], score, pairs.mask, kl_coef)
        if self.stop_token_penalty and pairs.finished is not None:
            penalty = self.stop_token_penalty * (~pairs.finished).float()  # [B]
            reward = reward + kl_adjusted_rewards(torch.zeros_like(reward), -penalty, pairs.mask, 0.0)
        if self.whiten_rewards:
            reward = whiten(reward, pairs.mask, keep_mean=True)
        return pairs.with_columns(reward=reward)


class KLController:
    """Holds kl_coef. With a target it drifts until the measured KL per response meets it."""

    def __init__(self, kl_coef: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.kl_coef = kl_coef
        self.target = target
        self.horizon = horizon

    def update(self, kl_per_response: float, num_responses: int) -> None:
        if self.target is not None:
            self.kl_coef = adapted_kl_coef(self.kl_coef, kl_per_response, self.target, num_responses, self.horizon)
