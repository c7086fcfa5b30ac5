"""KL to the reference, and rewards that are charged with it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from burnish.errors import InputError
from burnish.maths import adapted_kl_coef, kl_adjusted_rewards, kl_per_token, whiten
from burnish.sa_pairs import SAPairs, as_sa_pairs

Rows = SAPairs | Sequence[Mapping[str, Any]]
LARGEST = 1e15  # of a reward: its square is summed over a batch in float32


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


def scores_as_tensor(rewards: Sequence[float] | Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """[B] or [B, T]; a wrong length or a number that is not finite is refused, by response."""
    num_responses = mask.shape[0]
    given: list[Any] = [r.tolist() if hasattr(r, "tolist") else r for r in rewards]  # tensors and arrays
    if len(rewards) != num_responses:
        raise InputError(f"{len(rewards)} rewards for {num_responses} responses; a reward must give one for each")
    per_token = any(isinstance(r, Sequence) and not isinstance(r, str) for r in given)
    score = torch.zeros(mask.shape if per_token else num_responses, device=mask.device)
    for number, reward in enumerate(given):
        if not per_token:
            score[number] = finite_number(reward, f"the reward of response {number}")
            continue
        num_tokens = int(mask[number].sum())
        if not isinstance(reward, Sequence) or len(reward) != num_tokens:
            found = f"{len(reward)} rewards" if isinstance(reward, Sequence) else f"{reward!r}"
            raise InputError(f"response {number} has {num_tokens} tokens but {found}; per-token rewards need one each")
        for t, value in enumerate(reward):
            score[number, t] = finite_number(value, f"the reward of response {number}, token {t}")
    return score


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


class KLController:
    """Holds kl_coef. With a target it drifts until the measured KL per response meets it."""

    def __init__(self, kl_coef: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.kl_coef = kl_coef
        self.target = target
        self.horizon = horizon

    def update(self, kl_per_response: float, num_responses: int) -> None:
        if self.target is not None:
            self.kl_coef = adapted_kl_coef(self.kl_coef, kl_per_response, self.target, num_responses, self.horizon)
