"""Losses of a micro-batch: sums over its real tokens, so that any split of a mini-batch adds up to the same."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from burnish.config.rollout_config import ServedRollout
from burnish.maths import (
    approx_kl,
    cispo_loss,
    dppo_keeps,
    policy_ratio,
    ppo_clip_loss,
    sampler_weights,
    sequence_ratio,
    value_mse_loss,
)
from burnish.models.updates import Sums
from burnish.sa_pairs.table import SAPairs


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped objective, and what the loss charges or pays beside it: KL to the reference, entropy.

    `mean` and `scale` whiten the advantage: (advantage - mean) * scale. KL and entropy are scaled alike, so that
    `kl_coef` and `entropy_coef` price a nat in the reward's units.
    """

    clip_epsilon: float
    mean: Tensor | float = 0.0
    scale: Tensor | float = 1.0
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    kind: str = "clip"
    clip_high: float | None = None
    dual_clip: float | None = None
    aggregate: str = "tokens"
    longest: int = 1
    """Response length that a `constant` aggregate divides by."""
    served: ServedRollout | None = None
    """How tokens that a server sampled are weighed against what training makes of them. None: not at all."""

    def __call__(
        self, pairs: SAPairs, logprob: Tensor, kl: Tensor | None = None, entropy: Tensor | None = None
    ) -> tuple[Tensor, Sums]:
        """The summed loss of new log-probabilities (and KL and entropy)  [B, T] each, and statistics."""
        mask, old_logprob = pairs.mask, pairs["logprob"]
        advantage = (pairs["advantage"] - self.mean) * self.scale
        ratio = policy_ratio(logprob, old_logprob)
        loss, held = self._bounded(logprob, old_logprob, ratio, advantage, mask)
        weight = self._sampler_weights(pairs)
        if weight is not None:
            loss = loss * weight
        if kl is not None:
            loss = loss + self.kl_coef * self.scale * kl
        if entropy is not None:
            loss = loss - self.entropy_coef * self.scale * entropy
        loss = (loss * mask * self._token_weights(pairs)).sum()
        with torch.no_grad():
            num_tokens = int(mask.sum())
            statistics: Sums = {
                "policy_loss": (loss.detach(), self.weight_of(pairs.lengths)),
                "ratio": ((ratio * mask).sum(), num_tokens),
                "clip_fraction": ((held & mask).sum(), num_tokens),
                "approx_kl": (approx_kl(logprob, old_logprob, mask) * num_tokens, num_tokens),
            }
            if weight is not None:
                cut = weight != policy_ratio(old_logprob, pairs["sampler_logprob"])
                statistics["weight_cut"] = ((cut & mask).sum(), num_tokens)
        return loss, statistics

    def _sampler_weights(self, pairs: SAPairs) -> Tensor | None:
        """What each token counts for, where another engine sampled it.  [B, T]"""
        if self.served is None or not pairs.has("sampler_logprob"):
            return None
        how, largest = self.served.correction, self.served.largest_weight
        return sampler_weights(pairs["logprob"], pairs["sampler_logprob"], how, largest)

    @torch.no_grad()
    def reached(self, pairs: SAPairs, logprob: Tensor) -> tuple[Tensor, Tensor]:
        """The ratio of each token, and whether the bound of the update has been reached there.  [B, T] each"""
        ratio = policy_ratio(logprob, pairs["logprob"])
        advantage = (pairs["advantage"] - self.mean) * self.scale
        return ratio, self._bounded(logprob, pairs["logprob"], ratio, advantage, pairs.mask)[1]

    def _bounded(
        self, logprob: Tensor, old_logprob: Tensor, ratio: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of each token [B, T], and whether the bound of the update has been reached there."""
        low = self.clip_epsilon
        high = low if self.clip_high is None else self.clip_high
        if self.kind == "dppo":
            keeps = dppo_keeps(logprob.detach(), old_logprob, advantage, low, high)
            return -advantage * ratio * keeps, ~keeps
        if self.kind == "sequence":
            ratio = sequence_ratio(logprob, old_logprob, mask)
        outside = (ratio < 1 - low) | (ratio > 1 + high)
        if self.kind == "cispo":
            return cispo_loss(logprob, ratio, advantage, high), ratio > 1 + high
        return ppo_clip_loss(ratio, advantage, low, high, self.dual_clip), outside

    def weight_of(self, lengths: Tensor) -> float:
        """What the summed loss of responses of these lengths is divided by, for the mean."""
        if self.aggregate == "tokens":
            return int(lengths.sum())
        return len(lengths) * (1 if self.aggregate == "sequences" else self.longest)

    def _token_weights(self, pairs: SAPairs) -> Tensor | float:
        """What each token's loss is multiplied with.  [B, 1]"""
        return 1 / pairs.lengths[:, None] if self.aggregate == "sequences" else 1.0


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error to the returns, clipped around the rollout's values."""

    value_clip: float | None

    def __call__(self, pairs: SAPairs, value: Tensor) -> tuple[Tensor, Sums]:
        """The summed loss of new values [B, T], and statistics."""
        mask, old_value = pairs.mask, pairs["value"]
        loss = (value_mse_loss(value, pairs["returns"], old_value, self.value_clip) * mask).sum()
        with torch.no_grad():
            outside = (value - old_value).abs() > (self.value_clip or torch.inf)
            num_tokens = int(mask.sum())
            statistics: Sums = {
                "value_loss": (loss.detach(), num_tokens),
                "value_clip_fraction": ((outside & mask).sum(), num_tokens),
            }
        return loss, statistics
