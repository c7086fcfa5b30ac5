"""Guards around the training loop: numbers that are none, a policy that runs away, rewards that say nothing."""

from __future__ import annotations

import math
import warnings
from typing import ClassVar

import torch
from torch import Tensor

from burnish.config.rollout_config import ServedRollout
from burnish.errors import DivergedError
from burnish.sa_pairs.table import SAPairs

ADVICE = "Lower the learning rate, raise kl_coef, or look at the rewards of this step"


def check_finite(what: str, values: Tensor, sa_pairs: SAPairs) -> None:
    """Nothing that is not a number goes further.  values [B, T]"""
    wrong = ~values.isfinite() & sa_pairs.mask
    if wrong.any():
        row, token = wrong.nonzero()[0].tolist()
        raise DivergedError(
            f"the {what} of response {sa_pairs.numbers[row]}, token {token} became {values[row, token].item()}; no "
            f"weight was changed by it. {ADVICE}",
            sa_pairs,
        )


class RunawayGuard:
    """Stops a run whose policy has left its reference behind: KL beyond `max_kl` several steps in a row."""

    PATIENCE = 3

    def __init__(self, max_kl: float | None) -> None:
        self.max_kl = max_kl
        self.steps_beyond = 0

    def check(self, kl_per_token: float) -> None:
        if self.max_kl is None:
            return
        self.steps_beyond = self.steps_beyond + 1 if kl_per_token > self.max_kl else 0
        if self.steps_beyond >= self.PATIENCE:
            raise DivergedError(
                f"KL to the reference is {kl_per_token:.1f} nats per token, beyond max_kl {self.max_kl:g} for "
                f"{self.PATIENCE} steps in a row: the policy runs away from its reference. Lower "
                "learning_rate, raise kl_coef, or lower target_kl_stop"
            )


class SamplerGapGuard:
    """In half precision decoding and a training pass round differently, and a server has numbers of its own: stops
    where they differ by more than the format explains, and warns once where they drift apart. `gap` is the mean
    distance of their log-probabilities.
    """

    # Logits are of the order of 20, and the format rounds them by up to 2^-4 (bfloat16) or 2^-7 (float16).
    LIMITS: ClassVar = {torch.bfloat16: 0.2, torch.float16: 0.03}
    SERVED_FLOAT32 = 0.01  # 3e-5 was seen; an adapter that is one step old is further away
    GROWTH = 3.0

    def __init__(self, dtype: torch.dtype, rollout: ServedRollout | None = None) -> None:
        if rollout is None:
            self.limit = self.LIMITS.get(dtype, math.inf)
            self.advice = "Set dtype: float32, or look for what differs between the two"
        else:
            self.limit = rollout.max_gap or self.LIMITS.get(dtype, self.SERVED_FLOAT32)
            self.advice = "Look at what the rollout server serves, and in which format; rollout.max_gap is the limit"
        self.first_gap: float | None = None

    def check(self, gap: float | None) -> None:
        if gap is None:
            return
        if gap > self.limit:
            raise DivergedError(
                f"sampling and training disagree: their log-probabilities differ by {gap:.2g} on average, which the "
                f"number format does not explain (limit {self.limit:g}). {self.advice}"
            )
        if self.first_gap is None:
            self.first_gap = gap
        elif gap > self.GROWTH * max(self.first_gap, self.limit / 20):
            warnings.warn(
                f"the gap between sampling and training has grown from {self.first_gap:.2g} to {gap:.2g} nats a token; "
                "a lower learning rate or dtype: float32 keeps them together",
                stacklevel=2,
            )
            self.first_gap = gap  # told once, until it grows as much again


class ConstantRewardGuard:
    """Warns once if every response gets the same reward several steps in a row: there is nothing to learn from."""

    PATIENCE = 3

    def __init__(self) -> None:
        self.steps_constant = 0

    def check(self, totals: list[float]) -> None:
        """`totals`: the reward of each response of a step."""
        self.steps_constant = self.steps_constant + 1 if len(totals) > 1 and max(totals) - min(totals) < 1e-9 else 0
        if self.steps_constant == self.PATIENCE:
            warnings.warn(
                f"for {self.PATIENCE} steps in a row, every response got the same reward ({totals[0]:g}): PPO has "
                "nothing to learn from. Look at the reward with `burnish reward-test`",
                stacklevel=2,
            )
