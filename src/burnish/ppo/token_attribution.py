"""Token attribution: every generated token becomes a state-action pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from burnish.data.records import prompt_key, reference_of
from burnish.decoder.head import against_reference
from burnish.models.policy_model import PolicyModel
from burnish.models.role import scattered
from burnish.models.sft_model import SFTModel
from burnish.rollout.rollout import Rollout
from burnish.sa_pairs.table import SAPairs


class SAPairBuilder:
    """From one rollout to one table: the state of each pair is its prompt and the tokens before it."""

    def build(self, rollout: Rollout, speaker: PolicyModel, prompts: Sequence[str] | None = None) -> SAPairs:
        """Responses to equal `prompts`, with the same reference answer if they have one, form a group."""
        known = {"action": rollout.action, "logprob": rollout.logprob, "entropy": rollout.entropy}
        pairs = SAPairs(
            mask=rollout.mask,
            columns={},
            prompt_ids=rollout.prompt_ids,
            prompt_mask=rollout.prompt_mask,
            kept=rollout.kept,
            finished=rollout.finished,
            context=rollout.context,
            policy_version=speaker.num_updates,
            prompt_numbers=None if prompts is None else self.groups(prompts),
        )
        return speaker.adopt(pairs.with_columns(**{name: c for name, c in known.items() if c is not None}))

    def groups(self, prompts: Sequence[str]) -> list[int]:
        """The number of each response's prompt."""
        numbers: dict[Any, int] = {}
        keys = [(prompt_key(p), reference_of(p)) for p in prompts]
        return [numbers.setdefault(key, len(numbers)) for key in keys]


class TokenAttributionExtractor:
    """Gives every generated token its log-probabilities and its KL to the reference.

    In half precision, decoding token by token and one pass over the whole response round differently, by more than an
    update moves a ratio. There the policy's log-probabilities are computed again by such a pass, as the reference's are
    and as training will; the sampler's own stay as a column, and the step reports the gap. The same pass serves engines
    that give tokens alone.
    """

    def __init__(self, sft_model: SFTModel, keep_reference: bool = False) -> None:
        """`keep_reference`: training will compare whole distributions, and needs the reference's states for that."""
        self.sft_model = sft_model
        self.keep_reference = keep_reference

    @torch.no_grad()
    def extract(self, sa_pairs: SAPairs, speaker: PolicyModel, states: Tensor | None = None) -> SAPairs:
        """`states` [B, T, H] are those that the tokens were sampled from, where the engine knows them."""
        mask, kept, base = sa_pairs.mask, sa_pairs.kept, speaker.base
        if base.in_half_precision or states is None or not sa_pairs.has("logprob"):
            states = speaker.states(sa_pairs)
            if sa_pairs.has("logprob"):
                sa_pairs = sa_pairs.with_columns(sampler_logprob=sa_pairs["logprob"])
            sa_pairs = sa_pairs.with_columns(logprob=speaker.logprobs(sa_pairs, states))
        reference = self.sft_model.states(sa_pairs)
        ref_logprob, kl = against_reference(
            states[mask],
            reference[mask],
            base.output,
            sa_pairs["action"][mask],
            None if kept is None else kept[mask],
            speaker.temperature,
        )
        if self.keep_reference:
            sa_pairs = replace(sa_pairs, context=replace(base.context_of(sa_pairs), reference=reference))
        return sa_pairs.with_columns(ref_logprob=scattered(ref_logprob, mask), exact_kl=scattered(kl, mask))
