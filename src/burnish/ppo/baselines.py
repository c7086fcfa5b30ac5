"""Advantages from what other responses earned: of the same prompt, or of the whole batch.

A response is one action here. Its return is the sum of its rewards, the KL charged in them included, and all its tokens
have the same advantage, unless a line below says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from burnish.config import PPOConfig
from burnish.maths import (
    group_mean,
    group_std,
    leave_one_out_mean,
    masked_mean,
    reward_to_go,
    tether_weight,
)
from burnish.ppo.advantage import Estimator
from burnish.sa_pairs.table import SAPairs

SMALLEST_SPREAD = 1e-4  # added to a group's standard deviation: equal rewards give no advantage, not a division by zero
TETHER_MEMORY = 0.95  # of the critic's weight from step to step


class LeaveOneOut:
    """The return, less the mean return of the other responses to the prompt (RLOO)."""

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        returns, group = _returns_and_groups(sa_pairs)
        return _spread_over_tokens(sa_pairs, returns - leave_one_out_mean(returns, group))


class GroupMean:
    """The return, less the mean of all responses to the prompt (Dr. GRPO); `by_spread` also divides by their standard
    deviation (GRPO), so that a prompt counts as much whether its responses differ much or little.
    """

    def __init__(self, by_spread: bool = False) -> None:
        self.by_spread = by_spread

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        returns, group = _returns_and_groups(sa_pairs)
        advantage = returns - group_mean(returns, group)
        if self.by_spread:
            advantage = advantage / (group_std(returns, group) + SMALLEST_SPREAD)
        return _spread_over_tokens(sa_pairs, advantage)


class BatchMean:
    """The discounted rewards to come at each token, less their mean over the batch (REINFORCE++)."""

    def __init__(self, gamma: float = 1.0) -> None:
        self.gamma = gamma

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        returns = reward_to_go(sa_pairs["reward"], self.gamma)
        return sa_pairs.with_columns(advantage=returns - masked_mean(returns, sa_pairs.mask))


class Tether:
    """The rewards to come at each token, less a mix of leave-one-out and the critic's value (TETHER).

    The critic's weight begins at 0 and follows what would have predicted the returns of earlier batches best, so a
    critic that explains nothing has no say. A batch never sets its own weight: that would bias its advantages. A
    response that is alone in its group is compared with the critic.
    """

    def __init__(self, gamma: float = 1.0) -> None:
        self.gamma = gamma
        self.weight = 0.0
        self.used = 0.0
        """The weight in the last batch's advantages."""

    def compute_advantages(self, sa_pairs: SAPairs) -> SAPairs:
        value, to_come = sa_pairs["value"], reward_to_go(sa_pairs["reward"], self.gamma)
        group = _groups(sa_pairs)
        alone = (group == group[:, None]).sum(1, keepdim=True) == 1  # [B, 1]
        others = leave_one_out_mean(to_come[:, 0], group)[:, None].expand(sa_pairs.mask.shape)
        baseline = torch.where(alone, value, others)
        self.used = self.weight
        advantage = to_come - ((1 - self.weight) * baseline + self.weight * value)
        fitted = tether_weight(to_come, value, baseline, sa_pairs.mask & ~alone)
        self.weight = TETHER_MEMORY * self.weight + (1 - TETHER_MEMORY) * fitted
        return sa_pairs.with_columns(advantage=advantage)

    def state(self) -> dict[str, Any]:
        return {"tether_weight": self.weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight = float(state["tether_weight"])

    def metrics(self) -> dict[str, float]:
        return {"tether_weight": self.used}


def baseline_of(config: PPOConfig) -> Estimator | None:
    """What `baseline` names; None for GAE, whose parts the trainer has as components of their own."""
    if config.baseline == "leave_one_out":
        return LeaveOneOut()
    if config.baseline in ("group_mean", "group_normalised"):
        return GroupMean(by_spread=config.baseline == "group_normalised")
    if config.baseline == "batch_mean":
        return BatchMean(config.gamma)
    return Tether(config.gamma) if config.baseline == "tether" else None


def _returns_and_groups(sa_pairs: SAPairs) -> tuple[Tensor, Tensor]:
    """[B] each."""
    return sa_pairs["reward"].sum(1), _groups(sa_pairs)


def _groups(sa_pairs: SAPairs) -> Tensor:
    return torch.tensor(list(sa_pairs.groups), device=sa_pairs.mask.device)


def _spread_over_tokens(sa_pairs: SAPairs, advantage: Tensor) -> SAPairs:
    return sa_pairs.with_columns(advantage=advantage[:, None].expand(sa_pairs.mask.shape))
