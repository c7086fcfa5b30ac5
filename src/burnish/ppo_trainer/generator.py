"""Rollout: prompts in, SA pairs and texts out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.clock import Clock, timed
from burnish.models import PolicyModel, Sampler, SFTModel
from burnish.models.shared_base import shared_ending
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
    ) -> None:
        self.policy = policy
        self.encoder = encoder
        self.sampler = sampler
        self.max_new_tokens = max_new_tokens
        self.extractor = TokenAttributionExtractor(sft_model)
        self.builder = SAPairBuilder()
        self.clock = clock or Clock()
        self._invocation_known = False

    @timed
    def generate_sequences(
        self, prompts: Sequence[str], generator: torch.Generator | None = None, sampler: Sampler | None = None
    ) -> tuple[SAPairs, list[str]]:
        """One response per prompt: its SA pairs and its text."""
        encoded = self.encode(prompts)
        rollout = self.policy.generate(encoded, self.max_new_tokens, sampler or self.sampler, generator)
        pairs = self.builder.build(rollout, self.extractor.extract(rollout), self.policy.version)
        return pairs, self.decode(pairs)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts; on the way, agrees on the invocation: the tokens that all prompts so far end in."""
        encoded = self.encoder.encode(prompts)
        base = self.policy.base
        if not self._invocation_known:
            base.invocation = self.encoder.header or shared_ending(encoded)
            self._invocation_known = True
        elif any(ids[-len(base.invocation) :] != base.invocation for ids in encoded):
            base.invocation = shared_ending([base.invocation, *encoded])
        return encoded

    def decode(self, pairs: SAPairs) -> list[str]:
        """The responses as text, without special tokens."""
        responses = [action[mask].tolist() for action, mask in zip(pairs["action"], pairs.mask, strict=True)]
        return self.encoder.tokenizer.batch_decode(responses, skip_special_tokens=True)
