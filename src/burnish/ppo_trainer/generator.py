"""Rollout: prompts in, SA pairs and texts out."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from burnish.base_setup.tokenizer_setup import PromptEncoder
from burnish.clock import Clock, timed
from burnish.errors import InputError
from burnish.models import PolicyModel, Sampler, SFTModel
from burnish.models.shared_base import shared_ending
from burnish.sa_pairs import SAPairs
from burnish.token_attribution import SAPairBuilder, TokenAttributionExtractor

NO_SHARED_ENDING = (
    "The prompts share no ending, so peft cannot tell where a response-scope adapter begins: load the result with "
    "`burnish generate`, or train with adapter_scope: sequence for an adapter that loads anywhere."
)


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
        self._loaded = False

    @timed
    def generate_sequences(
        self, prompts: Sequence[str], generator: torch.Generator | None = None, sampler: Sampler | None = None
    ) -> tuple[SAPairs, list[str]]:
        """One response per prompt: its SA pairs and its text."""
        encoded = self.encoder.encode(prompts)
        rollout = self.policy.generate(encoded, self.max_new_tokens, sampler or self.sampler, generator)
        pairs = self.builder.build(rollout, self.extractor.extract(rollout), self.policy.num_updates)
        return pairs, self.decode(pairs)

    def agree_on_invocation(self, prompts: Sequence[str]) -> None:
        """Fixes where the adapters begin to act: the chat template's header, or the tokens that all prompts end in.

        `train` agrees on all its prompts at once. A later step whose prompts share less shortens it, with a warning.
        """
        encoded = self.encoder.encode(prompts)
        base = self.policy.base
        if base.scope == "sequence":
            return
        if not self._invocation_known:
            self._loaded = bool(base.invocation)  # an adapter that was loaded brings its own
            base.invocation = base.invocation or self.encoder.header or shared_ending(encoded)
            self._invocation_known = True
            if not base.invocation:
                warnings.warn(NO_SHARED_ENDING, stacklevel=4)
        agreed = base.invocation
        differs = [p for p, ids in zip(prompts, encoded, strict=True) if ids[len(ids) - len(agreed) :] != agreed]
        if not differs:
            return
        old = self.encoder.tokenizer.decode(agreed)
        if self._loaded:
            raise InputError(
                f"a loaded adapter begins to act at {old!r}, but a prompt ends differently: {differs[0][-40:]!r}; "
                "end every prompt in it"
            )
        base.invocation = shared_ending([agreed, *encoded])
        new = self.encoder.tokenizer.decode(base.invocation)
        now = f"from now on the adapters begin to act at {new!r}" if new else NO_SHARED_ENDING
        warnings.warn(
            f"not all of these prompts end in {old!r}: {now} (trainer.generator.agree_on_invocation(all_prompts) "
            "before the first step fixes it for the whole run)",
            stacklevel=4,
        )

    def decode(self, pairs: SAPairs) -> list[str]:
        """The responses as text, without special tokens."""
        responses = [action[mask].tolist() for action, mask in zip(pairs["action"], pairs.mask, strict=True)]
        return self.encoder.tokenizer.batch_decode(responses, skip_special_tokens=True)
