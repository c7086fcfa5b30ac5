"""Token attribution: every generated token becomes a state-action pair."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from burnish.models import PolicyModel, Rollout, SFTModel
from burnish.models.base_model import scattered
from burnish.models.sampling import against_reference
from burnish.models.shared_context import SharedContext
from burnish.sa_pairs import SAPairs


class TokenAttributionExtractor:
    """Gives every generated token its action, its log-probabilities, its KL and the entropy it was drawn from.

    In half precision, decoding token by token and one pass over the whole response round differently, by more than an
    update moves a ratio. There the policy's log-probabilities are computed again by such a pass, as the reference's are
    and as training will; the sampler's own stay as a column, and the step reports the gap.
    """

    def __init__(self, sft_model: SFTModel, keep_reference: bool = False) -> None:
        """`keep_reference`: training will compare whole distributions, and needs the reference's states for that."""
        self.sft_model = sft_model
        self.keep_reference = keep_reference

    @torch.no_grad()
    def extract(self, rollout: Rollout, speaker: PolicyModel) -> tuple[dict[str, Tensor], SharedContext]:
        """Columns of the SA pairs, each [B, T], and the context for later passes."""
        context, mask, kept, base = rollout.context, rollout.mask, rollout.kept, speaker.base
        columns = {"action": rollout.action, "logprob": rollout.logprob, "entropy": rollout.entropy}
        states = rollout.states
        if base.in_half_precision:
            states = speaker.states(context)
            columns["sampler_logprob"] = rollout.logprob
            columns["logprob"] = speaker.logprobs(context, mask, kept, states)
        reference = self.sft_model.states(context)
        ref_logprob, kl = against_reference(
            states[mask],
            reference[mask],
            base.head,
            rollout.action[mask],
            None if kept is None else kept[mask],
            speaker.temperature,
        )
        columns |= {"ref_logprob": scattered(ref_logprob, mask), "exact_kl": scattered(kl, mask)}
        return columns, replace(context, reference=reference) if self.keep_reference else context


class SAPairBuilder:
    """From one rollout to one table: the state of each pair is its prompt and the tokens before it."""

    def build(
        self,
        rollout: Rollout,
        columns: dict[str, Tensor],
        context: SharedContext,
        policy_version: int | None = None,
    ) -> SAPairs:
        table = SAPairs(
            mask=rollout.mask,
            columns={},
            prompt_ids=context.prompt_ids,
            prompt_mask=context.prompt_mask,
            kept=rollout.kept,
            finished=rollout.finished,
            context=context,
            policy_version=policy_version,
        )
        return table.with_columns(**columns)
