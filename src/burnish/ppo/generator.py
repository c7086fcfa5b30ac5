"""Rollout: prompts in, SA pairs and texts out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from burnish.base_setup.invocation import Invocation
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.models.policy_model import PolicyModel
from burnish.models.sft_model import SFTModel
from burnish.ppo.clock import Clock, timed
from burnish.ppo.guards import check_finite
from burnish.ppo.token_attribution import SAPairBuilder, TokenAttributionExtractor
from burnish.rollout.local import LocalEngine
from burnish.rollout.rollout import Engine
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.table import SAPairs


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
        engine: Engine | None = None,
    ) -> None:
        self.policy = policy
        self.engine = engine or LocalEngine()
        self.encoder = encoder
        self.sampler = sampler
        self.max_new_tokens = max_new_tokens
        self.extractor = TokenAttributionExtractor(sft_model, keep_reference)
        self.builder = SAPairBuilder()
        self.stop_ids: list[int] | None = None  # None: the base's own; empty: every response has its full length
        self.clock = clock or Clock()
        self.invocation = Invocation(policy.base, encoder)

    @timed
    def generate_sequences(
        self,
        prompts: Sequence[str],
        generator: torch.Generator | None = None,
        sampler: Sampler | None = None,
        speaker: PolicyModel | None = None,
        engine: Engine | None = None,
    ) -> tuple[SAPairs, list[str]]:
        """One response per prompt, by the policy or another speaker (and engine): its SA pairs and its text."""
        speaker = speaker or self.policy
        rollout = (engine or self.engine).generate(
            speaker,
            self.encoder.encode(prompts),
            self.max_new_tokens,
            sampler or self.sampler,
            generator,
            self.stop_ids,
        )
        pairs = self.builder.build(rollout, speaker, prompts)
        pairs = self.extractor.extract(pairs, speaker, rollout.states)
        check_finite("policy's log-probability", pairs["logprob"], pairs)
        check_finite("reference's log-probability", pairs["ref_logprob"], pairs)
        return pairs, self.decode(pairs)

    def agree_on_invocation(self, prompts: Sequence[str]) -> None:
        """Fixes where the adapters begin to act; `train` agrees on all its prompts at once."""
        self.invocation.agree(prompts)

    def decode(self, pairs: SAPairs) -> list[str]:
        """The responses as text, without special tokens."""
        return self.encoder.decode(pairs["action"], pairs.mask)
