"""Puts a rollout and its columns together as SA pairs."""

from __future__ import annotations

from torch import Tensor

from burnish.models.policy_model import Rollout
from burnish.token_attribution.sa_pairs import SAPairs


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
