"""Reads a rollout token by token: who acted, in which state, how likely, and how likely for the reference."""

from __future__ import annotations

from torch import Tensor

from burnish.models.policy_model import Rollout
from burnish.models.sft_model import SFTModel


class TokenAttributionExtractor:
    """Gives every generated token its action, its log-probabilities and the entropy it was drawn from."""

    def __init__(self, sft_model: SFTModel) -> None:
        self.sft_model = sft_model

    def extract(self, rollout: Rollout) -> dict[str, Tensor]:
        """Columns of the SA pairs, each [B, T]."""
        return {
            "action": rollout.action,
            "logprob": rollout.logprob,
            "ref_logprob": self.sft_model.logprobs(rollout.context, rollout.mask, rollout.kept),
            "entropy": rollout.entropy,
        }
