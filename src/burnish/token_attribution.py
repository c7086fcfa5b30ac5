"""Token attribution: every generated token becomes a state-action pair."""

from __future__ import annotations

from torch import Tensor

from burnish.models import Rollout, SFTModel
from burnish.sa_pairs import SAPairs


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


class SAPairBuilder:
    """From one rollout to one table: the state of each pair is its prompt and the tokens before it."""

    def build(self, rollout: Rollout, columns: dict[str, Tensor], policy_version: int | None = None) -> SAPairs:
        table = SAPairs(
            mask=rollout.mask,
            columns={},
            prompt_ids=rollout.context.prompt_ids,
            prompt_mask=rollout.context.prompt_mask,
            kept=rollout.kept,
            finished=rollout.finished,
            context=rollout.context,
            policy_version=policy_version,
        )
        return table.with_columns(**columns)
