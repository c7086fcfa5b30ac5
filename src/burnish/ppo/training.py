"""Losses of a micro-batch: sums over its real tokens, so that any split of a mini-batch adds up to the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.maths import approx_kl, policy_ratio, ppo_clip_loss, value_mse_loss
from burnish.sa_pairs.table import SAPairs

Statistics = dict[str, Tensor]
"""Sums over real tokens, to be divided by the number of tokens."""


@dataclass(frozen=True)
class PolicyLoss:
    """PPO-clip, and the KL to the reference if it is charged here.

    `mean` and `scale` whiten the advantage: (advantage - mean) * scale. The KL is scaled alike, so that `kl_coef`
    prices a nat in the reward's units wherever it is charged.
    """

    clip_epsilon: float
    mean: Tensor | float = 0.0
    scale: Tensor | float = 1.0
    kl_coef: float = 0.0

    def __call__(self, pairs: SAPairs, logprob: Tensor, kl: Tensor | None = None) -> tuple[Tensor, Statistics]:
        """The summed loss of new log-probabilities [B, T] (and KL [B, T]), and statistics."""
        mask, old_logprob = pairs.mask, pairs["logprob"]
        advantage = (pairs["advantage"] - self.mean) * self.scale
        ratio = policy_ratio(logprob, old_logprob)
        loss = ppo_clip_loss(ratio, advantage, self.clip_epsilon)
        if kl is not None:
            loss = loss + self.kl_coef * self.scale * kl
        with torch.no_grad():
            outside = (ratio - 1).abs() > self.clip_epsilon
            statistics = {
                "policy_loss": (loss * mask).sum(),
                "ratio": (ratio * mask).sum(),
                "clip_fraction": (outside & mask).sum(),
                "approx_kl": approx_kl(logprob, old_logprob, mask) * mask.sum(),
            }
        return (loss * mask).sum(), statistics


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error to the returns, clipped around the rollout's values."""

    value_clip: float | None

    def __call__(self, pairs: SAPairs, value: Tensor) -> tuple[Tensor, Statistics]:
        """The summed loss of new values [B, T], and statistics."""
        mask, old_value = pairs.mask, pairs["value"]
        loss = value_mse_loss(value, pairs["returns"], old_value, self.value_clip)
        with torch.no_grad():
            outside = (value - old_value).abs() > (self.value_clip or torch.inf)
            statistics = {"value_loss": (loss * mask).sum(), "value_clip_fraction": (outside & mask).sum()}
        return (loss * mask).sum(), statistics
