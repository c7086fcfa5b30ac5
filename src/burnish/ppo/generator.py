"""Rollout: prompts in, SA pairs and texts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from burnish.base_setup.invocation import Invocation
from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.models.policy_model import PolicyModel
from burnish.models.sft_model import SFTModel
from burnish.ppo.clock import Clock, timed
from burnish.ppo.guards import check_finite
from burnish.ppo.token_attribution import SAPairBuilder, TokenAttributionExtractor
from burnish.processes import world
from burnish.rollout.local import LocalEngine
from burnish.rollout.rollout import Engine, EngineOfSeveral, Rollout
from burnish.rollout.sampling import Sampler
from burnish.sa_pairs.shared import shared
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
        engine, encoded, own = engine or self.engine, self.encoder.encode(prompts), world.share_of_runs(prompts)
        with world.together():
            rollout = self._rollout(engine, speaker, encoded, own, sampler or self.sampler, generator)
            pairs = None if rollout is None else self._attributed(rollout, speaker, prompts, own)
        whole = shared(pairs, own, encoded, self.builder.groups(prompts))
        whole = replace(whole, decode=self.encoder.tokenizer.decode)
        return whole, self.decode(whole)

    def _rollout(
        self,
        engine: Engine,
        speaker: PolicyModel,
        encoded: list[list[int]],
        own: range,
        sampler: Sampler,
        generator: torch.Generator | None,
    ) -> Rollout | None:
        """Of this process's share of the prompts; None if it has none."""
        if world.size() == 1:
            return engine.generate(speaker, encoded, self.max_new_tokens, sampler, generator, self.stop_ids)
        if isinstance(engine, EngineOfSeveral):
            return engine.generate_own(speaker, encoded, own, self.max_new_tokens, sampler, generator, self.stop_ids)
        if generator is not None:  # another engine draws as it likes: for each process from a stream of its own
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            generator = torch.Generator(generator.device).manual_seed(seed + world.rank())
        if not own:
            return None
        given = encoded[own.start : own.stop]
        return engine.generate(speaker, given, self.max_new_tokens, sampler.of_rows(own), generator, self.stop_ids)

    def _attributed(self, rollout: Rollout, speaker: PolicyModel, prompts: Sequence[str], own: range) -> SAPairs:
        pairs = self.builder.build(rollout, speaker, prompts[own.start : own.stop])
        if len(own) < len(prompts):
            pairs = replace(pairs, response_numbers=list(own))
        pairs = self.extractor.extract(pairs, speaker, rollout.states)
        check_finite("policy's log-probability", pairs["logprob"], pairs)
        check_finite("reference's log-probability", pairs["ref_logprob"], pairs)
        return pairs

    def agree_on_invocation(self, prompts: Sequence[str]) -> None:
        """Fixes where the adapters begin to act; `train` agrees on all its prompts at once."""
        self.invocation.agree(prompts)

    def decode(self, pairs: SAPairs) -> list[str]:
        """The responses as text, without special tokens."""
        return self.encoder.decode(pairs["action"], pairs.mask)
