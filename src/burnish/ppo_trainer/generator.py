"""Rollout: prompts in, SA pairs and texts out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnish.base_setup.invocation import Invocation
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.clock import Clock, timed
from burnish.guards import check_finite
from burnish.models import PolicyModel, Sampler, SFTModel
from burnish.sa_pairs import SAPairs
from burnish.token_attribution import SAPairBuilder, TokenAttributionExtractor


class SequenceGenerator:
    """Generates with the policy and attributes every token: state, action, log-probability, reference's too."""

    def __init__(
        self,
        policy: PolicyModel,
        sft_model: SFTModel,
        encoder: PromptEncoder,
        sampler: Sampler,
        max_new_tokens: int,
        clock: Clock | None = None,
        keep_reference: bool = False,
    ) -> None:
        self.policy = policy
        self.encoder = encoder
        self.sampler = sampler
        self.max_new_tokens = max_new_tokens
        self.extractor = TokenAttributionExtractor(sft_model, keep_reference)
        self.builder = SAPairBuilder()
        self.clock = clock or Clock()
        self.invocation = Invocation(policy.base, encoder)

    @timed
    def generate_sequences(
        self,
        prompts: Sequence[str],
        generator: torch.Generator | None = None,
        sampler: Sampler | None = None,
        speaker: PolicyModel | None = None,
    ) -> tuple[SAPairs, list[str]]:
        """One response per prompt, by the policy or another speaker: its SA pairs and its text."""
        encoded = self.encoder.encode(prompts)
        speaker = speaker or self.policy
        rollout = speaker.generate(encoded, self.max_new_tokens, sampler or self.sampler, generator)
        columns, context = self.extractor.extract(rollout, speaker)
        pairs = self.builder.build(rollout, columns, context, speaker.num_updates)
        check_finite("policy's log-probability", pairs["logprob"], pairs)
        check_finite("reference's log-probability", pairs["ref_logprob"], pairs)
        return pairs, self.decode(pairs)

    def agree_on_invocation(self, prompts: Sequence[str]) -> None:
        """Fixes where the adapters begin to act; `train` agrees on all its prompts at once."""
        self.invocation.agree(prompts)

    def decode(self, pairs: SAPairs) -> list[str]:
        """The responses as text, without special tokens."""
        responses = [action[mask].tolist() for action, mask in zip(pairs["action"], pairs.mask, strict=True)]
        return self.encoder.tokenizer.batch_decode(responses, skip_special_tokens=True)
